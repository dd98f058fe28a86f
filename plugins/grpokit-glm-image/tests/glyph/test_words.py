"""The words of glm-glyph, their pictures and their visual tokens."""

from __future__ import annotations

import numpy as np
import pytest

from grpokit import UsageError
from grpokit_glm_image.glyph import letters, prompts
from grpokit_glm_image.glyph.words import ALPHABET, LENGTHS, words
from grpokit_glm_image.grids import PIXELS


def test_splits_share_no_word():
    splits = [words(split) for split in ("train", "eval", "pretrain")]
    together = [word for split in splits for word in split]
    assert len(together) == len(set(together))
    assert [len(split) for split in splits] == [950, 160, 11505]
    assert {len(word) for word in together} == set(LENGTHS)


@pytest.mark.parametrize("split", ["train", "pretrain"])
def test_every_letter_is_taught(split):
    assert set("".join(words(split))) == set(ALPHABET)


def test_an_unknown_split_is_named():
    with pytest.raises(UsageError, match="got 'test'"):
        words("test")


def test_prompts_quote_their_word_and_carry_its_picture():
    asked = prompts("eval", limit=8)
    assert [prompt.text.split('"')[1] for prompt in asked] == words("eval")[:8]
    assert all(p.target.tobytes() == letters.target_picture(p.meta["word"]).tobytes() for p in asked)
    assert len({prompt.text.replace(prompt.meta["word"], "") for prompt in asked}) == 4


def test_a_picture_is_its_letters_side_by_side():
    pixels = np.asarray(letters.target_picture("QUIZ"))
    assert pixels.shape == (*letters.SIZE, 3)
    for place, letter in enumerate("QUIZ"):
        alone = np.asarray(letters.target_picture(letter))[:, :PIXELS]
        assert np.array_equal(pixels[:, place * PIXELS : (place + 1) * PIXELS], alone)
    assert (pixels[:, 4 * PIXELS :] == letters.PAPER).all()


def test_letters_have_different_codes():
    ink, codes = letters.halves()
    assert len({tuple(pair) for pair in codes.tolist()}) == len(ALPHABET)
    assert len({patch.tobytes() for patch in ink}) == len(ink) <= letters.CODES - letters.GREYS
    assert not ink[0].any(), "code 0 is plain paper"


def test_a_draft_shows_each_code_of_the_large_grid_in_five_by_five_cells():
    grid = np.array(letters.word_codes("IT")).reshape(letters.ROWS, letters.COLUMNS)
    draft = np.array(letters.draft_codes(letters.word_codes("IT"))).reshape(letters.DRAFT)
    assert draft.shape == (5 * letters.ROWS, 5 * letters.COLUMNS)
    assert all(draft[row, column] == grid[row // 5, column // 5] for row in range(10) for column in range(25))


@pytest.mark.parametrize(("word", "message"), [("", "1 to 5 letters"), ("SIXTEEN", "1 to 5"), ("café", "A-Z only")])
def test_a_word_that_cannot_be_drawn_is_refused(word, message):
    with pytest.raises(UsageError, match=message):
        letters.word_codes(word)
