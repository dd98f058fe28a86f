"""Prompts that a reward can never score are named before anything is built."""

from __future__ import annotations

from typing import Any

import pytest

from grpokit import Prompt, RewardSpec, UsageError, registry
from grpokit.config import schema
from grpokit.data import as_prompts
from grpokit.runs.before_training import unscorable_prompts

MIXED, HELD_OUT = as_prompts(["a b", "x", "y"], source="p.txt"), as_prompts(["x", "c d"], source="h.txt")


def one_word(prompt: Prompt) -> str:
    return "" if " " in prompt.text else "it has one word"


@pytest.fixture(autouse=True)
def _spec(monkeypatch: pytest.MonkeyPatch) -> None:
    own = RewardSpec(name="pairs", factory="nowhere:f", unscorable=f"{__name__}:one_word")
    monkeypatch.setattr(registry, "spec_of", lambda kind, name: own if name == "pairs" else None)
    monkeypatch.setattr(registry, "resolve", {own.unscorable: one_word}.__getitem__)


def config(rewards: str) -> Any:
    return schema.parse(f"policy: {{use: 'a:b'}}\ndata: {{prompts: p.txt}}\nrewards: [{rewards}]\n", "c.yaml", [])


@pytest.mark.parametrize(
    ("rewards", "left"),
    [
        ("{use: pairs}", ". No reward tells samples of such a prompt apart"),
        ("{use: pairs}, {use: 'a:f', weight: 0}", ". No reward tells samples of such a prompt apart"),
        ("{use: pairs}, {use: 'a:f'}", ". Only the other rewards tell samples of such a prompt apart"),
        ("{use: pairs, weight: 0}, {use: 'a:f'}", ""),
    ],
)
def test_a_warning_says_how_many_and_what_is_left(rewards: str, left: str) -> None:
    assert unscorable_prompts(config(rewards), MIXED, HELD_OUT) == [
        "the reward 'pairs' cannot score 2 of 3 training prompts, first prompt 1 of p.txt ('x'): it has one word"
        + left,
        "the reward 'pairs' cannot score 1 of 2 held-out prompts, first prompt 0 of h.txt ('x'): it has one word",
    ]


def test_nothing_is_said_of_prompts_that_can_be_scored() -> None:
    assert unscorable_prompts(config("{use: pairs}"), as_prompts(["a b"]), None) == []
    assert unscorable_prompts(config("{use: 'a:f'}"), MIXED, HELD_OUT) == []


def test_a_run_without_any_score_is_refused() -> None:
    silent = as_prompts(["x", "y"], source="p.txt")
    with pytest.raises(
        UsageError, match=r"^No reward can score any training prompt: 'pairs' \(prompt 0 of p\.txt \('x'"
    ):
        unscorable_prompts(config("{use: pairs}, {use: 'a:f', weight: 0}"), silent, None)
    assert len(unscorable_prompts(config("{use: pairs}, {use: 'a:f'}"), silent, None)) == 1
