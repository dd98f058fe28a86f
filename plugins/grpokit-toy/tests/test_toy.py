"""Prompts that a toy cannot read are refused before a run, with their place."""

from __future__ import annotations

import re

import pytest

from grpokit import Policy, Trainer, UsageError
from grpokit_toy.flow import ToyFlow, on_ring
from grpokit_toy.glyph import ToyGlyph
from grpokit_toy.lm import ToyLM


@pytest.mark.parametrize(
    ("policy", "good", "bad", "words"),
    [
        (ToyLM, "47+32", "47 + 32", "toy-lm reads sums of two two-digit numbers such as '47+32'"),
        (ToyLM, "47+32", "147+321", "The prompt '147+321' is 7 tokens long"),
        (ToyGlyph, 'a sign "CAT"', "a sign", "toy-glyph needs a prompt with exactly one word in quotes"),
        (ToyFlow, "a ring of radius 0.5", "a ring", "toy-flow reads prompts that name a radius above 0"),
    ],
)
def test_a_prompt_that_cannot_be_read(policy: type[Policy], good: str, bad: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"^prompt 1: {re.escape(words)}"):
        Trainer(policy(), [on_ring], [good, bad], device="cpu")
