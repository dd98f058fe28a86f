"""Pictures: as rewards want them (RGB, whatever a policy made), and as files (opened upright, or refused).

Pillow's modes differ in what a number means; `to_rgb` is the one place that decides it, so that all rewards see the
same. Pillow's decoders raise whatever a damaged file leads them to; here all of it becomes a `DataError`. The header
alone is checked before a run, which costs a fraction of a millisecond; the rest is read when the prompt is drawn. A
camera's note on how the picture is to be turned (EXIF orientation) is followed, as viewers and datasets do.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from grpokit.errors import DataError, RewardError

PICTURES = (".png", ".jpg", ".jpeg", ".webp")

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


def open_picture(path: Path, *, where: str = "") -> Image.Image:
    """Open a picture fully and upright; `where` says in errors which prompt it belongs to.

    Raises:
        DataError: the file cannot be read as a picture, or has more pixels than Pillow thinks safe.
    """
    with _as_picture(path, where), Image.open(path) as picture:
        _has_pixels(picture)
        picture.load()
        return _upright(picture)


def check_picture(path: Path, *, where: str) -> None:
    """Read the header only, which finds a file of another kind, a cut off start and a wrong size.

    Raises:
        DataError: as for `open_picture`, as far as the header tells.
    """
    with _as_picture(path, where), Image.open(path) as picture:
        _has_pixels(picture)


def _has_pixels(picture: Image.Image) -> None:
    if 0 in picture.size:
        raise ValueError(f"it has {picture.width} x {picture.height} pixels")


def _upright(picture: Image.Image) -> Image.Image:
    """A copy, turned as its EXIF notes say; damaged notes say nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ImageOps.exif_transpose(picture)
    except Exception:  # Pillow raises SyntaxError, struct.error and others over them
        return picture.copy()


@contextmanager
def _as_picture(path: Path, where: str) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except Exception as error:  # Pillow's decoders raise a dozen kinds on damaged files
        raise DataError(
            f"{where}{': ' * bool(where)}{path} cannot be read as a picture: {_said(error)}. Replace the file."
        ) from error


def _said(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):  # names the path once more
        return "its content is of no kind of picture that Pillow knows"
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
