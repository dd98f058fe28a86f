"""The words of each split, and the prompts that quote them."""

import pytest

from grpokit import UsageError
from grpokit_toy.codebook import ALPHABET, MAX_LETTERS, target_image
from grpokit_toy.data import glyph_prompts, glyph_words
from grpokit_toy.glyph import quoted_word


def test_splits_share_no_word():
    splits = {name: glyph_words(name) for name in ("train", "eval", "pretrain")}
    together = [word for words in splits.values() for word in words]
    assert len(together) == len(set(together))
    assert len(splits["eval"]) >= 150
    assert len(splits["train"]) >= 700
    assert all(3 <= len(word) <= MAX_LETTERS and set(word) <= set(ALPHABET) for word in together)


def test_every_letter_is_trained_on_and_splits_do_not_change():
    for split in ("train", "pretrain"):
        assert set("".join(glyph_words(split))) == set(ALPHABET)
    assert glyph_words("eval") == glyph_words("eval")
    assert glyph_words("eval")[:3] == ["LAKE", "CLUB", "TAKE"]


def test_an_unknown_split_is_named():
    with pytest.raises(UsageError, match="got 'test'"):
        glyph_words("test")


def test_prompts_quote_their_word_and_carry_its_picture():
    for prompt in glyph_prompts("eval", limit=8):
        assert quoted_word(prompt.text) == prompt.meta["word"]
        assert prompt.target.tobytes() == target_image(prompt.meta["word"]).tobytes()
    assert len({p.text.replace(p.meta["word"], "") for p in glyph_prompts("eval", limit=8)}) == 4
