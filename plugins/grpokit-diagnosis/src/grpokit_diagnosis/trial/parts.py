"""What can be taken away from an output to see what it was worth: squares of a picture, words of a text.

A square is covered with the picture's middle colour, the median of each channel. It hides shape, colour and brightness
alike, while a blur keeps brightness. On a sign it is the colour of the background, so that the cover adds nothing to
read. A single grid cuts letters and faces where its lines happen to lie, so there are two, half a square apart
(occlusion: Zeiler & Fergus 2014, arXiv:1311.2901).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TypeAlias

from PIL import Image, ImageStat

MOST_WORDS = 200
"""Parts of a text; of a longer one, several neighbouring words are left out at once."""

# A word is what stands between spaces; scripts without spaces have one for each character.
_WITHOUT_SPACES = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_WITHOUT_SPACES}]|[^\s{_WITHOUT_SPACES}]+")


@dataclass(frozen=True)
class Square:
    """A part of a picture, in pixels; `right` and `bottom` are the first ones outside of it."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        """As Pillow takes it."""
        return self.left, self.top, self.right, self.bottom


@dataclass(frozen=True)
class Words:
    """A part of a text: its characters from `start` up to `end`."""

    start: int
    end: int


class DividedPicture:
    """A picture in squares.

    Args:
        picture: RGB.
        squares: how many lie along its longer side.
    """

    def __init__(self, picture: Image.Image, squares: int) -> None:
        self.whole = picture
        red, green, blue = ImageStat.Stat(picture).median
        self.colour = (red, green, blue)
        self.parts = squares_of(picture.size, squares)

    @property
    def empty(self) -> Image.Image:
        """A picture of the middle colour."""
        return Image.new("RGB", self.whole.size, self.colour)

    def without(self, index: int) -> Image.Image:
        """The picture with one square covered."""
        picture = self.whole.copy()
        picture.paste(self.colour, self.parts[index].box)
        return picture


class DividedText:
    """A text in words."""

    def __init__(self, text: str) -> None:
        self.whole = text
        self.parts = words_of(text)
        self.empty = ""

    def without(self, index: int) -> str:
        """The text without one part, and without one of the spaces beside it."""
        part = self.parts[index]
        before, after = self.whole[: part.start], self.whole[part.end :]
        if after[:1].isspace():
            after = after[1:]
        elif not after and before[-1:].isspace():
            before = before[:-1]
        return before + after


Divided: TypeAlias = DividedPicture | DividedText
"""An output with its parts: `whole`, `parts`, `empty` (without all of them), and `without` one."""


def divide(output: Image.Image | str, squares: int) -> Divided:
    """An output with its parts.

    Args:
        output: an RGB picture, or a text.
        squares: along the longer side of a picture.
    """
    return DividedText(output) if isinstance(output, str) else DividedPicture(output, squares)


def squares_of(size: tuple[int, int], count: int) -> list[Square]:
    """The squares of two grids, the second half a square further to the left and up.

    Args:
        size: of the picture: width, height.
        count: squares along the longer side; those at the border may be cut.

    >>> [square.box for square in squares_of((40, 20), 2)][:3]
    [(0, 0, 20, 20), (20, 0, 40, 20), (0, 0, 10, 10)]
    """
    side = max(size) / count
    squares = []
    for first in (0.0, side / 2):
        columns, rows = (_edges(length, first, side) for length in size)
        for (top, bottom), (left, right) in product(pairwise(rows), pairwise(columns)):
            squares.append(Square(left, top, right, bottom))
    return list(dict.fromkeys(squares))  # of a tiny picture both grids may be the same


def _edges(length: int, first: float, side: float) -> list[int]:
    """Where a side of the picture is cut, with its ends."""
    edges = {0, length}
    place = first
    while place < length:
        edges.add(round(place))
        place += side
    return sorted(edges)


def words_of(text: str) -> list[Words]:
    """The words of a text, or runs of words of a long one.

    >>> words_of("a cat")
    [Words(start=0, end=1), Words(start=2, end=5)]
    """
    spans = [match.span() for match in _WORD.finditer(text)]
    run = -(-len(spans) // MOST_WORDS) or 1
    return [Words(spans[at][0], spans[min(at + run, len(spans)) - 1][1]) for at in range(0, len(spans), run)]
