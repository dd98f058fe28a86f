"""The codebook, and the pictures that are made of it."""

import numpy as np
import pytest

from grpokit import UsageError
from grpokit_toy.codebook import ALPHABET, COLUMNS, MARGIN, PATCH, ROWS, codebook, target_image


@pytest.mark.parametrize("word", ["CAT", "QUIZ", "WJXYZ"])
def test_a_target_is_its_letters_exactly(word):
    """The picture of a word is the pictures of its letters side by side: no patch was approximated."""
    pixels = np.asarray(target_image(word))
    assert pixels.shape == (ROWS * PATCH, COLUMNS * PATCH + 2 * MARGIN, 3)
    for k, letter in enumerate(word):
        alone = np.asarray(target_image(letter))[:, MARGIN : MARGIN + PATCH]
        assert np.array_equal(pixels[:, MARGIN + k * PATCH : MARGIN + (k + 1) * PATCH], alone)
    assert bool((pixels[:, MARGIN + len(word) * PATCH :] == pixels[0, 0]).all())


def test_codes_are_different_and_letters_are_too():
    book = codebook()
    assert len({patch.tobytes() for patch in book.patches}) == len(book.patches)
    assert len({tuple(pair) for pair in book.letters.tolist()}) == len(ALPHABET)
    assert bool((book.patches[0] == book.patches[0, 0, 0]).all()), "code 0 is the empty patch"


def test_decoding_is_the_inverse_of_encoding():
    book = codebook()
    numbers = {patch.tobytes(): code for code, patch in enumerate(book.patches)}
    pixels = np.asarray(target_image("HOUSE"))[:, MARGIN:-MARGIN]
    patches = pixels.reshape(ROWS, PATCH, COLUMNS, PATCH, 3).swapaxes(1, 2).reshape(-1, PATCH, PATCH, 3)
    assert [numbers[np.ascontiguousarray(patch).tobytes()] for patch in patches] == book.tokens("HOUSE")


def test_a_picture_needs_all_its_tokens():
    with pytest.raises(UsageError, match="has 10 tokens, got 3"):
        codebook().picture([0, 1, 2])
