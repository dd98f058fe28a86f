"""Pictures: converted to RGB for rewards, and opened from files.

A number means different things in Pillow's modes; only `to_rgb` decides what, so all rewards see the same picture.
Pillow's decoders raise many kinds of errors on damaged files; here all of them become a `DataError`. Prompts are listed
from headers alone, in a fraction of a millisecond each, and a picture is decoded when its prompt is drawn. Pictures are
turned by their EXIF orientation and brought to sRGB by their ICC profile, as viewers do.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from PIL import ExifTags, Image, ImageCms, ImageOps, UnidentifiedImageError

from grpokit.errors import DataError, RewardError, one_line

PictureFile: TypeAlias = Path | bytes | IO[bytes]
"""A picture's file: its path, its bytes, or opened."""

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
"""The endings that the names of picture files may have."""
MAX_PIXELS = 36_000_000
"""Pictures with more pixels are refused, unless the user sets another limit: 6,000 x 6,000.

That is more than any generator draws and most cameras take. It is also the most that 16 GB of memory can hold: rewards
keep several copies of a picture in floats, about 120 bytes a pixel in all.
"""

COMPARED_PIXELS = 2**22
"""The most pixels at which `for_comparison` leaves a picture as it is: 2,048 x 2,048."""

_OTHERS = (".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jxl", ".tga", ".tif", ".tiff")
_MOST_NAMES = 5  # in a message
_PROFILED = {  # mode -> the one whose colours its ICC profile describes
    **dict.fromkeys(("L", "LA"), "L"),
    **dict.fromkeys(("P", "RGB", "RGBA"), "RGB"),
    "CMYK": "CMYK",
}


@runtime_checkable
class Drawable(Protocol):
    """An output that can be shown as a picture, by IPython's display protocol for PNG.

    Notebooks show such an object as a picture; a run stores the picture for its report.
    """

    def _repr_png_(self) -> bytes:
        """The picture as the bytes of a PNG file."""


def to_rgb(picture: Any, *, what: str = "the output") -> Image.Image:
    """Return a picture upright, as sRGB with 8 bits per colour: transparent parts on white, 16-bit gray scaled down.

    Args:
        picture: a `PIL.Image.Image` of any mode but `I` and `F`, which do not define which number is white.
        what: names it in errors, such as "the output of row 3".

    Raises:
        RewardError: it is not a picture, has no pixels, or has the mode `I` or `F`.
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
            f"The picture that is {what} has the mode '{picture.mode}', which does not define which number is white; "
            "expected RGB, RGBA, a palette or gray with 8 or 16 bits. Convert it first, with your own scale."
        )
    image = as_viewed(picture)
    if image.mode.startswith("I;16"):
        levels = np.asarray(image)
        gray = (levels // 257).astype(np.uint8)
        gray[levels == image.info.get("transparency", -1)] = 255
        return Image.fromarray(gray).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def as_viewed(picture: Image.Image) -> Image.Image:
    """The picture as viewers show it, or itself: turned by its EXIF orientation, in sRGB by its ICC profile.

    Damaged EXIF data and a damaged profile are ignored, and so is the profile of 16-bit gray.
    """
    return _in_srgb(_upright(picture))


def _upright(picture: Image.Image) -> Image.Image:
    if _orientation(picture) == 1:
        return picture
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ImageOps.exif_transpose(picture)
    except Exception:  # Pillow raises SyntaxError, struct.error and others
        return picture


def _in_srgb(picture: Image.Image) -> Image.Image:
    profile = picture.info.get("icc_profile")
    mode = _PROFILED.get(picture.mode)
    if not profile or mode is None:
        return picture
    try:
        to_srgb = ImageCms.buildTransform(io.BytesIO(profile), ImageCms.createProfile("sRGB"), mode, "RGB")
    except (TypeError, ImageCms.PyCMSError):  # it is damaged, or for colours of another kind
        return picture
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")  # first, since Pillow warns of a palette that goes to RGB with its alpha
    converted = to_srgb.apply(picture.convert(mode))
    if picture.mode == "RGBA":
        converted.putalpha(picture.getchannel("A"))
    del converted.info["icc_profile"]
    return converted


def for_comparison(picture: Image.Image) -> Image.Image:
    """A target or a source in the size at which rewards compare outputs with it.

    That is its own size. A photograph with more than `COMPARED_PIXELS` is shrunk to as many (bicubic, with Pillow's
    antialiasing): the pixels of a camera would take half a minute a row, and few generators draw more.
    """
    shrink = math.sqrt(COMPARED_PIXELS / (picture.width * picture.height))
    if shrink >= 1:
        return picture
    width, height = (max(1, round(side * shrink)) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.BICUBIC)


def picture_to_compare(
    picture: Any, prompt: str, row: int, *, role: Literal["target", "source"], reward: str
) -> Image.Image:
    """A prompt's target or source as rewards compare outputs with it: upright RGB, see `for_comparison`.

    Args:
        picture: what the prompt has.
        prompt: its text.
        row: of the sample.
        role: of the picture.
        reward: the name of the one that compares.

    Raises:
        DataError: it is no picture.
    """
    if not isinstance(picture, Image.Image):
        raise DataError(
            f"The reward '{reward}' compares pictures: expected a PIL.Image.Image as the {role} of row {row} (prompt "
            f"{prompt!r}), got {type(picture).__name__}. Give the prompts a folder of {role} images."
        )
    return for_comparison(to_rgb(picture, what=f"the {role} of row {row} (reward '{reward}')"))


def is_picture_name(name: str) -> bool:
    """Whether a name ends like a picture's, even of a kind that is not in `PICTURES`."""
    return name.lower().endswith((*PICTURES, *_OTHERS))


def is_hidden(path: Path) -> bool:
    """Whether a file is hidden, such as the `._1.png` that macOS writes next to a `1.png`."""
    return path.name.startswith(".")


def other_pictures(folder: Path) -> list[Path]:
    """The pictures in a folder of other kinds than `PICTURES`; messages name them, but nothing reads them."""
    files = sorted(path for path in folder.iterdir() if not is_hidden(path))
    return [file for file in files if file.suffix.lower() in _OTHERS]


def to_convert(others: Sequence[Path]) -> str:
    """The part of a message about `other_pictures`, without a full stop."""
    if len(others) == 1:
        return f"{others[0].name} is a picture of another kind: convert it"
    more = f" and {len(others) - _MOST_NAMES:,} more" if len(others) > _MOST_NAMES else ""
    return f"{', '.join(path.name for path in others[:_MOST_NAMES])}{more} are pictures of other kinds: convert them"


def open_picture(file: PictureFile, *, where: str = "", max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read a whole picture, as `as_viewed` gives it; `where` names its prompt in errors.

    Raises:
        DataError: the file cannot be read as a picture, or has more than `max_pixels` pixels.
    """
    with _opened(file, where, max_pixels) as picture:
        picture.load()
        return as_viewed(picture).copy()


def check_picture(file: PictureFile, *, where: str, max_pixels: int = MAX_PIXELS) -> None:
    """Read only the header, which is enough to notice another kind of file, a truncated start or a wrong size.

    Raises:
        DataError: as for `open_picture`, as far as the header shows it.
    """
    with _opened(file, where, max_pixels):
        pass


def check_whole(file: PictureFile, *, where: str, max_pixels: int = MAX_PIXELS) -> None:
    """Read a picture to its end, which takes a part of the time of `open_picture`, and notices a file that was cut off.

    Raises:
        DataError: as for `open_picture`.
    """
    with _opened(file, where, max_pixels) as picture:
        if picture.format in ("PNG", "WEBP"):
            picture.verify()  # the checksums of a PNG; a WebP was parsed to its end when it was opened
        else:
            picture.draft(None, (1, 1))  # a JPEG, also one with several pictures (MPO), at an eighth of its size
            picture.load()


def blank_picture(file: PictureFile, *, where: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """A blank, upright picture with the mode and size in a file's header.

    Raises:
        DataError: as for `check_picture`.
    """
    with _opened(file, where, max_pixels) as picture:
        width, height = picture.size
        if _orientation(picture) >= _FIRST_LYING:
            width, height = height, width
        return Image.new(picture.mode, (width, height))


_FIRST_LYING = 5  # EXIF orientations from here on swap width and height


def _orientation(picture: Image.Image) -> int:
    """The EXIF orientation in the header; a PNG's own `getexif` would decode the picture to look behind the pixels."""
    try:
        value = Image.Image.getexif(picture).get(ExifTags.Base.Orientation, 1)
    except Exception:  # Pillow raises SyntaxError, struct.error and others on damaged EXIF data
        return 1
    return value if isinstance(value, int) else 1


@contextmanager
def _opened(file: PictureFile, where: str, max_pixels: int) -> Iterator[Image.Image]:
    """A picture of which only the header was read; every error inside the context becomes a DataError."""
    name = f"{where}{': ' * bool(where)}{file}" if isinstance(file, Path) else where
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # max_pixels is the limit instead
            with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as picture:
                _check_size(name, picture.size, max_pixels)
                yield picture
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise a dozen kinds of errors on damaged files
        raise DataError(f"{name} cannot be read as a picture: {_reason(error)}. Replace the file.") from error


def _check_size(name: str, size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if 0 in size:
        raise DataError(f"{name} cannot be read as a picture: it has {width} x {height} pixels. Replace the file.")
    if width * height > max_pixels:
        raise DataError(
            f"{name} has {width:,} x {height:,} = {width * height:,} pixels; the limit is {max_pixels:,}. Make it "
            "smaller, or raise the limit: data.max_pixels in a config, --max-pixels on the command line."
        )


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):  # its text repeats the path
        return "its content is not a kind of picture that Pillow knows"
    return one_line(error)
