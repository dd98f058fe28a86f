"""Pictures for the page: inside it, small, or as addresses that `grpokit watch` serves.

Only files that lie inside a run's own sample folders are shown; a link that leads out of them counts as missing, and so
does half a picture.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from PIL import Image

from grpokit.errors import RewardError
from grpokit.images import to_rgb
from grpokit.run_folder.names import GROUPS, SAMPLES
from grpokit.run_folder.reader import Row

LARGE, MEDIUM, SMALL, TINY = 448, 256, 144, 80  # pixels
_ROOM = 10 * 2**20  # characters of pictures, after which further ones are tiny: a page must fit into a mail
_AS_IT_IS = 6 * 1024  # bytes; a smaller file gains nothing from being shrunk
_BIGGEST = 64 * 2**20  # bytes of a picture that is shown


class Album(Protocol):
    """Where a page finds its pictures."""

    def add(self, path: Path, side: int) -> str:
        """What stands for a picture in the view; empty where it cannot be shown."""
        ...


class Inlined:
    """Pictures as data URIs, each kept once.

    Attributes:
        pictures: name -> data URI.
    """

    def __init__(self) -> None:
        self.pictures: dict[str, str] = {}
        self._names: dict[tuple[Path, int], str] = {}
        self._length = 0

    def add(self, path: Path, side: int) -> str:
        """The name of a picture in `pictures`, of at most `side` pixels; empty where it cannot be read."""
        if (path, side) not in self._names:
            uri = _small(path, side if self._length < _ROOM else TINY)
            name = hashlib.sha256(uri.encode()).hexdigest()[:16] if uri else ""
            self._names[path, side] = name
            if uri and name not in self.pictures:
                self.pictures[name] = uri
                self._length += len(uri)
        return self._names[path, side]


class Linked:
    """Pictures by the address at which `grpokit watch` serves them.

    Args:
        run: the run's number on the page.
    """

    def __init__(self, run: int) -> None:
        self.run = run

    def add(self, path: Path, side: int) -> str:
        """The address of a picture; it changes with the file, so that a browser may keep it."""
        if not is_inside(path):
            return ""
        kind, step = path.parent.parent.name, path.parent.name
        return f"picture/{self.run}/{kind}/{step}/{quote(path.name)}?{path.stat().st_mtime_ns}"


def is_inside(path: Path) -> bool:
    """Whether a path RUN/samples/step_.../NAME or RUN/groups/step_.../NAME names a PNG file that really lies there."""
    kind = path.parent.parent
    in_a_step = kind.name in (SAMPLES, GROUPS) and re.fullmatch(r"step_\d+", path.parent.name)
    if not in_a_step or path.suffix != ".png" or path.name.startswith("."):
        return False
    try:
        real = path.resolve()
        lies_there = real.is_file() and real.is_relative_to(kind.parent.resolve() / kind.name)
        return lies_there and 0 < real.stat().st_size <= _BIGGEST
    except (OSError, RuntimeError, ValueError):  # a circle of links, a name with a zero byte
        return False


def picture_of(folder: Path, row: Row, part: str) -> Image.Image | None:
    """The picture of a row that a folder of samples holds: its output ("file"), "source" or "target", as RGB.

    Returns:
        None where there is none, or where it is damaged or lies elsewhere.
    """
    return _opened(folder / Path(row.get(part) or "-").name)


def _opened(path: Path) -> Image.Image | None:
    if not is_inside(path):
        return None
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            return to_rgb(picture, what=path.name)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, RewardError):  # Pillow's, for half a file
        return None


def _small(path: Path, side: int) -> str:
    """A picture as a data URI; empty where it cannot be shown."""
    picture = _opened(path)
    if picture is None:
        return ""
    if path.stat().st_size <= _AS_IT_IS:
        return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
    picture.thumbnail((side, side))
    out = io.BytesIO()
    picture.save(out, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"
