"""Picture files: opened, or refused in one message that says which prompt wanted them.

Pillow's decoders raise whatever a damaged file leads them to; here all of it becomes a `DataError`. The header alone
is checked before a run, which costs a fraction of a millisecond, and the rest is read when the prompt is drawn. A
camera's note how the picture is to be turned (EXIF orientation) is followed, as viewers and datasets do.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from grpokit.errors import DataError

PICTURES = (".png", ".jpg", ".jpeg", ".webp")

_OTHERS = (".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jxl", ".tga", ".tif", ".tiff")
_NAMED = 5  # files that a message names


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
