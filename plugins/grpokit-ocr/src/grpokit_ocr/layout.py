"""Where text stands in a picture: the box around its ink, and the order in which pieces of text are read.

Shared by the engines, pure, and without a model, so that every number can be worked out by hand.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
from PIL import Image, ImageFilter

MIN_CONTRAST = 24
"""Of 255; where nothing differs more from the background, the picture is blank."""

LARGE = 1024
"""Pixels; in a picture with longer sides the ink is looked for at a whole fraction of its size, to save time."""

INK = 0.3
"""What differs from the background by this share of the largest difference is ink."""

Box = tuple[float, float, float, float]
"""Left, upper, right, lower, in pixels."""


def ink_box(image: Image.Image) -> tuple[int, int, int, int] | None:
    """The box (left, upper, right, lower) around everything that differs from the background; None if nothing does.

    The background is the median colour of the picture's edge. A 3 x 3 mean comes first, so that noise in single pixels
    does not stretch the box. The box keeps a margin of an eighth of its height, where the picture has it.
    """
    if min(image.size) < 1:
        return None
    shrink = max(1, max(image.size) // LARGE)
    small = image.reduce(shrink) if shrink > 1 else image
    pixels = np.asarray(small.filter(ImageFilter.BoxBlur(1)), dtype=np.float32)  # [h, w, 3]
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    background = np.median(edge, axis=0)  # [3]
    distance = np.abs(pixels - background).max(axis=2)  # [h, w]
    if distance.max() < MIN_CONTRAST:
        return None
    ink = distance > INK * distance.max()
    ys = np.flatnonzero(ink.any(axis=1))
    xs = np.flatnonzero(ink.any(axis=0))
    margin = max(1, (ys[-1] + 1 - ys[0]) // 8)
    return (
        max(0, int(xs[0] - margin) * shrink),
        max(0, int(ys[0] - margin) * shrink),
        min(image.width, int(xs[-1] + 1 + margin) * shrink),
        min(image.height, int(ys[-1] + 1 + margin) * shrink),
    )


def enlargement(size: tuple[int, int], *, side: int, most: float) -> float:
    """By how much a picture grows so that its shorter side has `side` pixels; 1 to `most`."""
    return min(most, max(1.0, side / min(size)))


def in_reading_order(pieces: Iterable[tuple[Box, str]]) -> list[str]:
    """Join pieces of text to lines: from top to bottom, and in a line as its script runs, with tabs between the pieces.

    Blank pieces are left out.

    A line with more letters of scripts such as Hebrew and Arabic than of others runs from right to left, and so do
    upright columns of Chinese and Japanese.

    A piece belongs to the line of the piece above it if their heights overlap by more than half of the lower one.

    >>> in_reading_order([((60, 11, 90, 29), "day"), ((10, 40, 50, 60), "sale"), ((10, 10, 50, 30), "open")])
    ['open\\tday', 'sale']
    >>> in_reading_order([((10, 10, 50, 30), "עולם"), ((60, 11, 90, 29), "שלום")])
    ['שלום\\tעולם']
    """
    lines: list[list[tuple[Box, str]]] = []
    for box, text in sorted(pieces, key=_upper_left):
        if not text.strip():
            continue
        if lines and _side_by_side(lines[-1][0][0], box):
            lines[-1].append((box, text))
        else:
            lines.append([(box, text)])
    return ["\t".join(_along(line)) for line in lines]


def _along(line: Sequence[tuple[Box, str]]) -> list[str]:
    """The texts of a line in the order in which its script runs."""
    letters = "".join(text for _, text in line)
    wide = all(unicodedata.east_asian_width(letter) in "WF" for letter in letters)
    upright = wide and all(_is_upright(box) for box, _ in line)
    kinds = [unicodedata.bidirectional(letter) for letter in letters]
    leftwards = kinds.count("R") + kinds.count("AL") > kinds.count("L")
    if upright or leftwards:
        pieces = sorted(line, key=lambda piece: -piece[0][2])
    else:
        pieces = sorted(line, key=lambda piece: piece[0][0])
    return [text.strip() for _, text in pieces]


def _upper_left(piece: tuple[Box, str]) -> tuple[float, float]:
    left, upper, _, _ = piece[0]
    return upper, left


def _is_upright(box: Box) -> bool:
    left, upper, right, lower = box
    return lower - upper > 1.5 * (right - left)


def _side_by_side(first: Box, second: Box) -> bool:
    _, upper, _, lower = first
    _, second_upper, _, second_lower = second
    overlap = min(lower, second_lower) - max(upper, second_upper)
    return 2 * overlap > min(lower - upper, second_lower - second_upper)
