"""Prompts that a reward can never score are named before anything is built."""

from __future__ import annotations

from typing import Any

import pytest
from PIL import Image

from grpokit import DataError, PolicySpec, Prompt, RewardSpec, UsageError, registry
from grpokit.builtin.text_rewards import without_number
from grpokit.config import schema
from grpokit.data import as_prompts
from grpokit.rewards import missing_inputs
from grpokit.rewards.missing_inputs import picture_target
from grpokit.runs import build_rewards
from grpokit.runs.preflight import unscorable_prompts

MIXED, HELD_OUT = as_prompts(["a b", "x", "y"], source="p.txt"), as_prompts(["x", "c d"], source="h.txt")


def one_word(prompt: Prompt, *, space: str = " ") -> str:
    if prompt.text == "":
        raise DataError("it is blank.")
    return "" if space in prompt.text else "it has one word"


@pytest.fixture(autouse=True)
def _spec(monkeypatch: pytest.MonkeyPatch) -> None:
    own = RewardSpec(api=1, name="pairs", factory="nowhere:f", unscorable=f"{__name__}:one_word")
    monkeypatch.setattr(registry, "spec_of", lambda kind, name: own if name == "pairs" else None)
    monkeypatch.setattr(registry, "resolve", {own.unscorable: one_word}.__getitem__)


def config(rewards: str) -> Any:
    return schema.parse(f"policy: {{use: 'a:b'}}\ndata: {{prompts: p.txt}}\nrewards: [{rewards}]\n", "c.yaml", [])


@pytest.mark.parametrize("rewards", ["{use: pairs}", "{use: pairs, weight: 0}, {use: 'a:f'}"])
def test_a_warning_says_how_many(rewards: str) -> None:
    assert unscorable_prompts(config(rewards), MIXED, HELD_OUT) == [
        "the reward 'pairs' cannot score 2 of 3 training prompts, first prompt 1 of p.txt ('x'): it has one word",
        "the reward 'pairs' cannot score 1 of 2 held-out prompts, first prompt 0 of h.txt ('x'): it has one word",
    ]


def test_a_wrong_prompt_is_refused_with_its_place() -> None:
    wrong = as_prompts(["a b", ""], source="w.txt")
    for prompts, held_out in ((wrong, None), (MIXED, wrong)):
        with pytest.raises(DataError, match=r"^The reward 'pairs' cannot take prompt 1 of w\.txt \(''\): it is blank"):
            unscorable_prompts(config("{use: pairs}"), prompts, held_out)


def test_the_function_is_told_the_parameters_that_it_names() -> None:
    (line,) = unscorable_prompts(config("{use: pairs, space: x, other: 1}"), MIXED, None)
    assert "cannot score 2 of 3 training prompts, first prompt 0 of p.txt" in line


def test_nothing_is_said_of_prompts_that_can_be_scored() -> None:
    assert unscorable_prompts(config("{use: pairs}"), as_prompts(["a b"]), None) == []
    assert unscorable_prompts(config("{use: 'a:f'}"), MIXED, HELD_OUT) == []


@pytest.mark.parametrize("others", ["", ", {use: 'a:f'}", ", {use: 'a:f', weight: 0}"])
def test_a_trained_reward_without_any_score_is_refused(others: str) -> None:
    silent = as_prompts(["x", "y"], source="p.txt")
    with pytest.raises(
        UsageError, match=r"^The reward 'pairs' can score no training prompt, first prompt 0 of p\.txt \('x'\): it has"
    ):
        unscorable_prompts(config("{use: pairs}" + others), silent, None)
    assert len(unscorable_prompts(config("{use: pairs, weight: 0}, {use: 'a:f'}"), silent, None)) == 1


def test_targets_of_another_shape_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward stretches a picture to its target, so a wrong shape would be learnt."""
    targets = [Image.new("RGB", size) for size in ((64, 32), (128, 64), (64, 64), (65, 32))]
    prompts = as_prompts([Prompt(text="a sign", target=target) for target in targets], source="p.txt")
    painter = PolicySpec(api=1, name="painter", factory="nowhere:f", makes="image")
    monkeypatch.setattr(registry, "spec_of", lambda kind, name: painter if name == "a:b" else None)
    monkeypatch.setattr(registry, "parameters", lambda kind, name, given: {"size": [32, 64]})
    monkeypatch.setattr(build_rewards, "unscorable", lambda config, index: picture_target)
    [line] = unscorable_prompts(config("{use: pairs}"), prompts, None)
    assert "of 2 of 4 training prompts have another shape" in line
    assert "prompt 2 of p.txt: 64 x 64 pixels instead of 64 x 32" in line
    monkeypatch.setattr(build_rewards, "unscorable", lambda config, index: None)  # it cannot be asked
    assert unscorable_prompts(config("{use: pairs}"), prompts, None) == [line]


def test_what_a_prompt_lacks() -> None:
    picture = Image.new("RGB", (4, 4))
    lacking, texts = Prompt(text="p"), [Prompt(text="p", target=target) for target in ("x", 0, 0.5)]
    framed, blank = Prompt(text="p", target=picture), Prompt(text="p", target=" \n")
    assert [missing_inputs.text_target(prompt) for prompt in (*texts, blank)] == [""] * 4
    assert [missing_inputs.any_target(prompt) for prompt in (*texts, blank)] == [""] * 3 + ["its target is blank"]
    assert (
        without_number(Prompt(text="p", target="$1,234.5")) == without_number(texts[1]) == picture_target(framed) == ""
    )
    for function in (missing_inputs.text_target, missing_inputs.any_target, without_number, picture_target):
        assert function(lacking).startswith("there is no target")
    for function, wrong in (
        (missing_inputs.text_target, framed),
        (missing_inputs.any_target, Prompt(text="p", target=["x"])),
        (without_number, texts[0]),
        (without_number, framed),
        (picture_target, texts[0]),
    ):
        with pytest.raises(DataError):
            function(wrong)
    edit = Prompt(text="p", image=picture, meta={"style": "ink", "reward_model": {"ground_truth": 1}})
    assert "data.columns.target=image" in picture_target(edit)
    assert "data.columns.target=image" not in picture_target(lacking) + missing_inputs.text_target(edit)
    assert "the column style or reward_model.ground_truth, write" in missing_inputs.text_target(edit)
    assert [missing_inputs.source(Prompt(text="p", image=image)) == "" for image in (picture, None)] == [True, False]
