"""The reward `reasoning-gym`: the score of the answer that a text gives."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from grpokit import DataError, Prompt, Sample
from grpokit_check import Check, parametrize_with_checks, reward_checks
from grpokit_reasoning_gym.plugin import grpokit_rewards
from grpokit_reasoning_gym.questions import questions
from grpokit_reasoning_gym.reward import ReasoningGym, unscorable

(SPEC,) = grpokit_rewards()


@parametrize_with_checks(reward_checks(ReasoningGym(), spec=SPEC, module="grpokit_reasoning_gym.plugin"))
def test_contract(check: Check) -> None:
    check()


def asked(task: str, **parameters: Any) -> Prompt:
    return questions("eval", tasks={task: parameters}, held_out=1)[0]


def score(prompt: Prompt, text: str, **parameters: Any) -> float:
    return ReasoningGym(**parameters)([Sample(prompt=prompt, output=text, group=0)])[0]


SUM = asked("chain_sum")


@pytest.mark.parametrize(
    ("text", "pattern", "expected"),
    [
        ("Let me see. <answer> {} </answer>", None, 1.0),
        ("<answer>7</answer> no, <answer>{}</answer>", None, 1.0),
        ("<answer>{}</answer> no, <answer>7</answer>", None, 0.0),
        ("<answer>{}</answer><answer></answer>", None, 1.0),
        ("{}", None, 0.0),
        ("<answer>{}", None, 0.0),
        ("{}", "(.*)", 1.0),
        (" {}\n", "(.*)", 1.0),
        ("It is {}.", r"(-?\d+)", 1.0),
        ("", "(.*)", 0.0),
    ],
)
def test_where_the_answer_is(text: str, pattern: str | None, expected: float) -> None:
    parameters = {} if pattern is None else {"pattern": pattern}
    assert score(SUM, text.format(SUM.target), **parameters) == expected


def test_a_task_may_give_a_part() -> None:
    backward = asked("spell_backward", min_word_len=5)
    almost = backward.target[:-1] + "?"
    assert 0 < score(backward, almost, pattern="(.*)") < 1


@pytest.mark.parametrize("task", ["prime_factorization", "boxnet", "game_of_life"])
def test_what_a_task_cannot_read_scores_0(task: str) -> None:
    assert score(asked(task), '<answer>{"a": 0.5}</answer>') == 0.0


def test_other_prompts_are_not_scored() -> None:
    other = Prompt(text="2 + 2", target="4")
    assert math.isnan(score(other, "<answer>4</answer>"))
    assert unscorable(other)
    assert not unscorable(SUM)


def test_a_question_of_another_version_is_no_zero() -> None:
    with pytest.raises(DataError, match="Install the version"):
        score(replace(SUM, text="State the sum of 1 and 2."), "<answer>3</answer>")
