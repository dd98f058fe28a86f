"""Pictures: as rewards want them (RGB, whatever a policy made), and as files (opened upright, or refused).

Pillow's modes differ in what a number means; `to_rgb` is the one place that decides it, so that all rewards see the
same. Pillow's decoders raise whatever a damaged file leads them to; here all of it becomes a `DataError`. The header
alone is checked before a run, which costs a fraction of a millisecond; the rest is read when the prompt is drawn. A
camera's note on how the picture is to be turned (EXIF orientation) is followed, as viewers and datasets do.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from grpokit.errors import DataError, RewardError, one_line

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
MAX_PIXELS = 36_000_000
"""More pixels than this are refused, unless the user says otherwise: 6,000 x 6,000.

That is more than any generator draws and most cameras take, and as much as a machine of 16 GB stands: rewards hold
several copies of a picture in floats, about 120 bytes a pixel in all.
"""

_OTHERS = (".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jxl", ".tga", ".tif", ".tiff")
_NAMED = 5  # files that a message names


@runtime_checkable
class Drawable(Protocol):
    """An output that is no picture and can be shown as one: IPython's display protocol for PNG.

    Notebooks show such an object by themselves; a run keeps the picture for its report.
    """

    def _repr_png_(self) -> bytes:
        """The picture as the bytes of a PNG file."""


def to_rgb(picture: Any, *, what: str = "the output") -> Image.Image:
    """Return a picture as RGB with 8 bits per colour: transparent parts on white, 16-bit gray scaled down.

    Args:
        picture: a `PIL.Image.Image` of any mode but `I` and `F`, in which no number is agreed to be white.
        what: names it in errors, such as "the output of row 3".

    Raises:
        RewardError: it is no picture, has no pixels, or has the mode `I` or `F`.
    """
    if not isinstance(picture, Image.Image):
        raise RewardError(
            f"Expected a PIL.Image.Image as {what}, got {type(picture).__name__}. This reward scores pictures: use it "
            "with a policy that makes images, or convert with Image.fromarray."
        )
    if 0 in picture.size:
        size = f"{picture.width} x {picture.height} pixels"
        raise RewardError(f"Expected a picture with pixels as {what}, got one of {size}.")
    if picture.mode in ("I", "F"):
        raise RewardError(
            f"The picture that is {what} has the mode '{picture.mode}', in which no number is agreed to be white; "
            "expected RGB, RGBA, a palette or gray with 8 or 16 bits. Convert it first, with your own scale."
        )
    if picture.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(picture) // 257).astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        rgba = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return picture.convert("RGB")


def hidden(path: Path) -> bool:
    """Whether a file is not meant to be seen, as the `._1.png` that macOS leaves beside a `1.png`."""
    return path.name.startswith(".")


def other_pictures(folder: Path) -> list[Path]:
    """The pictures in a folder that are of none of the kinds `PICTURES`: to be named, not to be read."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _OTHERS and not hidden(path))


def to_convert(others: Sequence[Path]) -> str:
    """What a message says of `other_pictures`, without a full stop."""
    if len(others) == 1:
        return f"{others[0].name} is a picture of another kind: convert it"
    more = f" and {len(others) - _NAMED:,} more" if len(others) > _NAMED else ""
    return f"{', '.join(path.name for path in others[:_NAMED])}{more} are pictures of other kinds: convert them"


def open_picture(path: Path, *, where: str = "", max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open a picture fully and upright; `where` says in errors which prompt it belongs to.

    Raises:
        DataError: the file cannot be read as a picture, or has more than `max_pixels` pixels.
    """
    with _opened(path, where, max_pixels) as picture:
        picture.load()
        return _upright(picture)


def check_picture(file: Path | bytes, *, where: str, max_pixels: int = MAX_PIXELS) -> None:
    """Read the header only, which finds a file of another kind, a cut off start and a wrong size.

    Raises:
        DataError: as for `open_picture`, as far as the header tells.
    """
    with _opened(file, where, max_pixels):
        pass


def blank_picture(file: Path | bytes, *, where: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """A blank picture of the mode and size that a file's header says, upright.

    Raises:
        DataError: as for `check_picture`.
    """
    with _opened(file, where, max_pixels) as picture:
        turned = _orientation(picture) >= _FIRST_LYING
        return Image.new(picture.mode, picture.size[::-1] if turned else picture.size)


_FIRST_LYING = 5  # EXIF orientations from here on swap width and height


def _orientation(picture: Image.Image) -> int:
    """The note in the header; a PNG's own method would decode the picture to look for one behind the pixels."""
    try:
        value = Image.Image.getexif(picture).get(ExifTags.Base.Orientation, 1)
    except Exception:  # Pillow raises SyntaxError, struct.error and others over damaged notes
        return 1
    return value if isinstance(value, int) else 1


@contextmanager
def _opened(file: Path | bytes, where: str, max_pixels: int) -> Iterator[Image.Image]:
    """A picture whose header alone was read, with everything that goes wrong in the context as a DataError."""
    name = f"{where}{': ' * bool(where)}{file}" if isinstance(file, Path) else where
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit here is the user's
            with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as picture:
                _check_size(name, picture.size, max_pixels)
                yield picture
    except DataError:
        raise
    except Image.DecompressionBombError as error:
        raise DataError(f"{name} has more pixels than Pillow opens: make it smaller.") from error
    except Exception as error:  # Pillow's decoders raise a dozen kinds on damaged files
        raise DataError(f"{name} cannot be read as a picture: {_reason(error)}. Replace the file.") from error


def _check_size(name: str, size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if 0 in size:
        raise DataError(f"{name} cannot be read as a picture: it has {width} x {height} pixels. Replace the file.")
    if width * height > max_pixels:
        raise DataError(
            f"{name} has {width:,} x {height:,} = {width * height:,} pixels; the limit is {max_pixels:,}. Make it "
            "smaller, or raise the limit: data.max_pixels in a config, --max-pixels of grpokit score."
        )


def _upright(picture: Image.Image) -> Image.Image:
    """A copy, turned as its EXIF notes say; damaged notes say nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ImageOps.exif_transpose(picture)
    except Exception:  # Pillow raises SyntaxError, struct.error and others over them
        return picture.copy()


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):  # names the path once more
        return "its content is of no kind of picture that Pillow knows"
    return one_line(error)
