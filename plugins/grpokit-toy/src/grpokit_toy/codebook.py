"""Visual tokens of toy-glyph: a codebook of 16x16 patches that holds both halves of every capital letter exactly.

A picture is a raster of 5 x 2 patches with a plain margin, so 10 codes are a picture and the decoder is a table
look-up: what a reward sees follows from the tokens alone. The same table draws the targets, so a perfect policy
exists. It lies in the shipped start file, made by `tools/make_toy_glyph.py`; no font is needed at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors import safe_open

from grpokit import UsageError

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_LETTERS = 5
PATCH = 16  # pixels
COLUMNS, ROWS = MAX_LETTERS, 2  # patches of a picture; a letter is one column of them
MARGIN = 8  # pixels, left and right of the raster, so that no letter touches the edge
START_FILE = Path(__file__).parent / "assets" / "toy-glyph.safetensors"


def checked_word(word: str) -> str:
    """Return `word` in capitals.

    Raises:
        UsageError: it is empty, too long, or has a letter outside A-Z.
    """
    capitals = word.upper()
    strange = sorted({letter for letter in capitals if letter not in ALPHABET})
    if strange:
        raise UsageError(f"toy-glyph draws the letters A-Z only; {word!r} has {', '.join(map(repr, strange))}.")
    if not 0 < len(capitals) <= MAX_LETTERS:
        raise UsageError(f"toy-glyph draws words of 1 to {MAX_LETTERS} letters; {word!r} has {len(capitals)}.")
    return capitals


@dataclass(frozen=True, kw_only=True)
class Codebook:
    """The patches, and which of them make which letter.

    Attributes:
        patches: [K, 16, 16, 3] uint8; code 0 is the empty background.
        letters: [26, 2] codes, a letter's upper and lower half.
    """

    patches: np.ndarray[Any, np.dtype[np.uint8]]
    letters: np.ndarray[Any, np.dtype[np.int64]]

    def tokens(self, word: str) -> list[int]:
        """The 10 codes, row by row, of a picture with `word` in it, from the left."""
        raster = np.zeros((ROWS, COLUMNS), np.int64)
        for column, letter in enumerate(checked_word(word)):
            raster[:, column] = self.letters[ALPHABET.index(letter)]
        codes: list[int] = raster.reshape(-1).tolist()
        return codes

    def picture(self, tokens: Sequence[int]) -> Image.Image:
        """Decode 10 codes to a 96 x 32 RGB picture."""
        if len(tokens) != ROWS * COLUMNS:
            raise UsageError(f"A toy-glyph picture has {ROWS * COLUMNS} tokens, got {len(tokens)}.")
        raster = self.patches[np.asarray(tokens)].reshape(ROWS, COLUMNS, PATCH, PATCH, 3)
        width, height = COLUMNS * PATCH, ROWS * PATCH
        pixels = raster.transpose(0, 2, 1, 3, 4).reshape(height, width, 3)
        background = tuple(self.patches[0, 0, 0].tolist())
        paper = Image.new("RGB", (width + 2 * MARGIN, height), background)
        paper.paste(Image.fromarray(np.ascontiguousarray(pixels)), (MARGIN, 0))
        return paper


@lru_cache(maxsize=1)
def codebook() -> Codebook:
    """The codebook that toy-glyph ships with."""
    with safe_open(START_FILE, framework="np") as file:
        return Codebook(
            patches=file.get_tensor("codebook.patches"),
            letters=file.get_tensor("codebook.letters").astype(np.int64),
        )


def target_image(word: str) -> Image.Image:
    """The picture of `word` that a perfect policy would draw."""
    return codebook().picture(codebook().tokens(word))
