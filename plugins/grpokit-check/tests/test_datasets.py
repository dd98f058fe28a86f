"""The checks of datasets: right ones pass, and each mistake is caught by its check."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from command_line import Call
from grpokit import Prompt
from grpokit_check import dataset_checks, outcomes


def failed(dataset: Callable[[str], Any]) -> set[str]:
    return {outcome.name for outcome in outcomes(dataset_checks(dataset)) if outcome.failed}


def numbers(split: str) -> list[str]:
    return [str(number) for number in range(10) if (number < 2) == (split == "eval")]


def test_right_ones() -> None:
    assert not failed(numbers)
    assert not failed(lambda split: (Prompt(text=text, target=text) for text in numbers(split)))


WRONG: dict[str, Callable[[str], Any]] = {
    "prompts": lambda split: numbers(split) if split == "train" else [],
    "repeatable": lambda split: [*numbers(split), str(random.SystemRandom().random())],
    "global-rng": lambda split: [random.choice("ab"), *numbers(split)][1:],
    "held-out": lambda split: numbers("train")[: 8 if split == "train" else 2],
}


@pytest.mark.parametrize(("check", "dataset"), WRONG.items(), ids=WRONG)
def test_each_mistake_is_caught_by_its_check(check: str, dataset: Callable[[str], Any]) -> None:
    assert failed(dataset) == {check}


def test_the_command(call: Call) -> None:
    assert "4 checks passed" in call("check", "grpokit_toy.lm:sum_prompts", "limit=9", "--kind", "dataset").out
    assert "no parameter 'lmit'" in call("check", "grpokit_toy.lm:sum_prompts", "lmit=9", "--kind", "dataset").err
