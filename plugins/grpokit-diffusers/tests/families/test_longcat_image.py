"""LongCat-Image: how texts become tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers.pipelines.longcat_image.pipeline_longcat_image import split_quotation
from transformers import Qwen2Tokenizer

from grpokit_diffusers.families.longcat_image import parts_of
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_diffusers.tiny.parts import LETTERS, QWEN

IT_S, NO = '"it\'s"', "'no'"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a cat", [("a cat", False)]),
        (f"a cat's {NO}", [("a cat's ", False), (NO, True)]),
        (f"don't write {IT_S}, but {NO}", [("don't write ", False), (IT_S, True), (", but ", False), (NO, True)]),
    ],
    ids=["none", "one", "several"],
)
def test_words_with_an_apostrophe(text: str, expected: list[tuple[str, bool]]) -> None:
    """Where there are several, diffusers takes them for each other."""
    assert parts_of(text) == expected
    assert (split_quotation(text) == expected) == ("don't" not in text)


def test_tokens_are_counted_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """CAT is one token, and in quotes three; the tokenizer of the tiny model has only letters."""
    family: Any = DiffusersFlow("tiny-longcat-image", size=(32, 32), steps=2).family
    pipeline = family.pipeline
    vocab = {text: token for token, text in enumerate([*LETTERS, *QWEN, "CA", "CAT"])}
    pipeline.tokenizer = Qwen2Tokenizer(vocab=vocab, merges=[("C", "A"), ("CA", "T")])
    read: list[torch.Tensor] = []
    forward = pipeline.text_encoder.forward

    def reads(input_ids: torch.Tensor, attention_mask: torch.Tensor, **more: Any) -> Any:
        read.append(attention_mask)
        return forward(input_ids.clamp(max=len(LETTERS)), attention_mask=attention_mask, **more)

    monkeypatch.setattr(pipeline.text_encoder, "forward", reads)
    empty, plain, quoted, spelled = "", "a CAT's hat isn't", "a 'CAT' isn't CAT's", '"CAT"'
    for text in (empty, plain, quoted, spelled):
        family.encoded(text)
    around, *counts = (int(mask.sum()) for mask in read)
    assert [count - around for count in counts] == [family.text_length(text) for text in (plain, quoted, spelled)]
    assert counts[2] - around == 5
