"""The letters of glm-glyph, and the pictures and visual tokens of the words that they make.

A letter is 32 x 64 pixels, which is two visual tokens, one above the other; a picture has room for five letters from
the left, so that its large grid is 2 x 5 tokens. The letters lie beside this file as a picture, drawn once by
`tools/make_glm_glyph.py`, so that no font is needed at run time. Code 0 is plain paper, the next ones number the
different halves of letters, and the last are eight greys, which no word has. A draft shows the same codes five times as
large.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from grpokit import UsageError
from grpokit_glm_image.glyph.words import ALPHABET, LENGTHS
from grpokit_glm_image.grids import PIXELS

LETTERS_FILE = Path(__file__).parent / "letters.png"
INK, PAPER = (30, 40, 90), (250, 240, 215)
ROWS, COLUMNS = 2, max(LENGTHS)  # of the large grid; a letter is one column
SIZE = (ROWS * PIXELS, COLUMNS * PIXELS)  # height and width of a picture, in pixels
DRAFT = (10, 25)  # rows and columns of the draft, by the processor's rule for such a picture
GREYS = 8
CODES = 64


@lru_cache(maxsize=1)
def letters() -> NDArray[np.uint8]:
    """How much ink each pixel of a letter has: [26, 64, 32], 0 to 255."""
    with Image.open(LETTERS_FILE) as picture:
        ink = np.asarray(picture.convert("L"))  # [64, 26 * 32]
    return np.ascontiguousarray(ink.reshape(ROWS * PIXELS, len(ALPHABET), PIXELS).swapaxes(0, 1))


@lru_cache(maxsize=1)
def halves() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The ink of each code [K, 32, 32], of which the first is plain paper, and the codes of each letter [26, 2]."""
    patches = letters().reshape(-1, PIXELS, PIXELS)  # [26, 64, 32] -> [26 * 2, 32, 32]
    different = {patch.tobytes(): patch for patch in (np.zeros_like(patches[0]), *patches)}
    numbers = {patch: number for number, patch in enumerate(different)}
    codes = np.array([numbers[patch.tobytes()] for patch in patches], np.int64)
    return np.stack(list(different.values())), codes.reshape(len(ALPHABET), ROWS)


def word_codes(word: str) -> list[int]:
    """The 10 codes of a word's large grid, row by row.

    Raises:
        UsageError: it is empty, too long, or has a letter outside A-Z.
    """
    strange = sorted({letter for letter in word if letter not in ALPHABET})
    if strange:
        raise UsageError(f"glm-glyph draws the capitals A-Z only; {word!r} has {', '.join(map(repr, strange))}.")
    if not 0 < len(word) <= COLUMNS:
        raise UsageError(f"glm-glyph draws words of 1 to {COLUMNS} letters; {word!r} has {len(word)}.")
    grid = np.zeros((ROWS, COLUMNS), np.int64)
    grid[:, : len(word)] = halves()[1][[ALPHABET.index(letter) for letter in word]].T
    codes: list[int] = grid.reshape(-1).tolist()
    return codes


def draft_codes(codes: Sequence[int]) -> list[int]:
    """The 250 codes of a draft, row by row: each of the large grid's 10 `codes` stands in 5 x 5 cells."""
    grid = np.asarray(codes).reshape(ROWS, COLUMNS)
    draft: list[int] = grid.repeat(DRAFT[0] // ROWS, 0).repeat(DRAFT[1] // COLUMNS, 1).reshape(-1).tolist()
    return draft


def picture(codes: Sequence[int]) -> Image.Image:
    """The 160 x 64 picture of a large grid's codes."""
    return ImageOps.colorize(Image.fromarray(_ink(codes)), black=PAPER, white=INK)


def target_picture(word: str) -> Image.Image:
    """The picture of a word, as a perfect model would draw it."""
    return picture(word_codes(word))


def _ink(codes: Sequence[int]) -> NDArray[np.uint8]:
    """How much ink each pixel of a large grid's picture has: [64, 160]."""
    patches = codebook()[np.asarray(codes)].reshape(ROWS, COLUMNS, PIXELS, PIXELS)
    return np.ascontiguousarray(patches.swapaxes(1, 2).reshape(SIZE))


@lru_cache(maxsize=1)
def codebook() -> NDArray[np.uint8]:
    """The ink of all codes, [CODES, 32, 32]: halves of letters, codes without a meaning (plain), and greys."""
    ink = np.zeros((CODES, PIXELS, PIXELS), np.uint8)
    own = halves()[0]
    ink[: len(own)] = own
    ink[CODES - GREYS :] = (np.arange(GREYS) * 255 // (GREYS - 1))[:, None, None]
    return ink
