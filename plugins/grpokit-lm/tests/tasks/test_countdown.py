"""The countdown reward by hand, and the problems of `lm-countdown`."""

from __future__ import annotations

import math
from typing import Any

import pytest

from grpokit import DataError, Prompt, Sample, UsageError
from grpokit_lm.tasks.countdown import Countdown, problems, prompts, solution, solutions, unscorable
from grpokit_lm.tasks.expressions import compute


def score(text: str, *, target: Any = "22", numbers: Any = (3, 5, 7), **options: Any) -> float:
    meta = {} if numbers is None else {"numbers": numbers}
    prompt = Prompt(text="Make 22 from 3, 5 and 7.", target=target, meta=meta)
    return Countdown(**options)([Sample(prompt=prompt, output=text, group=0)])[0]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<think>3*5=15,15+7=22</think><answer>3*5+7</answer>", 1),
        ("<answer>7 + (5*3)</answer>\n", 1),
        ("<answer>3*5</answer> no: <answer>3*5+7</answer>", 1),  # the last one
        ("<answer>3*5+7</answer> no: <answer>3*5</answer>", 0),
        ("<answer>3*5+7</answer> I think", 0),  # not at the end
        ("3*5+7", 0),
        ("<answer>22</answer>", 0),  # right, but not of these numbers
        ("<answer>3*5+7=22</answer>", 0),
        ("<answer>3*7+5</answer>", 0),  # 26
        ("<answer>3*5+7+7-7</answer>", 0),  # 7 three times
        ("<answer>15+7</answer>", 0),
        ("<answer>5/0+3*7</answer>", 0),
        ("<answer>٣*٥+٧</answer>", 0),
        ("<answer>3**5+7</answer>", 0),
        ("<answer>9**9**9**9</answer>", 0),
        ("<answer></answer>", 0),
        ("<answer>" + "3*5+7" * 10**5 + "</answer>", 0),
        ("<answer>" * 10**5, 0),
        ("", 0),
    ],
)
def test_scores_by_hand(text: str, right: int) -> None:
    assert score(text) == right


@pytest.mark.parametrize(
    ("numbers", "target", "text", "right"),
    [
        ([3, 3, 8], 24, "8*3*3", 0),
        ([8, 3, 3], 72, "8*3*3", 1),
        ([3, 8], 72, "8*3*3", 0),  # 3 twice
        ([3, 3, 8], 24, "3*8", 0),  # 3 once
        ([8, 3, 8, 3], "24", "8/(3-8/3)", 1),  # only with fractions on the way
        ([2, 4], "2", "4/2", 1),
        ([2, 4], "2", "2/4", 0),
        ([5, 2], "2", "5/2", 0),  # no rounding
        (["2", "4"], 2, "4/2", 1),
    ],
)
def test_each_number_is_used_once_and_values_are_exact(numbers: Any, target: Any, text: str, right: int) -> None:
    assert score(f"<answer>{text}</answer>", numbers=numbers, target=target) == right


def test_a_pattern_says_where_the_expression_is() -> None:
    assert score("Answer: 3*5+7", pattern="Answer: (.*)") == 1
    assert score("<answer>3*5+7</answer>", pattern="Answer: (.*)") == 0
    assert score("Answer: 3*5+7", pattern="Answer:(x)?") == 0  # the group is left out
    for pattern, words in (("(", "is not a regular expression"), ("Answer", "has no group")):
        with pytest.raises(UsageError, match=f"countdown: the pattern '.*' {words}"):
            Countdown(pattern=pattern)


def test_prompts_without_numbers_or_target_are_not_scored() -> None:
    assert math.isnan(score("<answer>3*5+7</answer>", numbers=None))
    assert math.isnan(score("<answer>3*5+7</answer>", target=None))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"numbers": "3, 5"}, "a prompt's `numbers` must be a list of whole numbers, got '3, 5'"),
        ({"numbers": []}, "a prompt's `numbers` must be a list of whole numbers, got a list of 0"),
        ({"numbers": [3, 0.5]}, "the number 0.5 is not a whole number"),
        ({"numbers": [True, 5]}, "the number true is not a whole number"),
        ({"target": "many"}, "the target 'many' is not a whole number"),
    ],
)
def test_prompts_that_make_no_sense(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        score("<answer>3*5+7</answer>", **changes)
    prompt = {"numbers": [3, 5, 7], "target": 22, **changes}
    with pytest.raises(DataError, match=words):
        unscorable(Prompt(text="p", target=prompt["target"], meta={"numbers": prompt["numbers"]}))


def test_every_problem_has_the_solutions_that_are_listed() -> None:
    for (numbers, target), ways in solutions().items():
        for steps in ways:
            text = solution(steps)
            assert score(text, numbers=list(numbers), target=target) == 1, text
            for a, sign, b, result in steps:
                assert compute(f"{a}{sign}{b}").value == result


def test_splits_share_no_problem() -> None:
    splits = {name: problems(name) for name in ("train", "eval", "pretrain")}
    together = [problem for split in splits.values() for problem in split]
    assert len(together) == len(set(together)) == len(solutions()) == 892
    assert {name: len(split) for name, split in splits.items()} == {"train": 392, "eval": 200, "pretrain": 300}


def test_prompts_say_the_problem() -> None:
    for prompt, (numbers, target) in zip(prompts("eval", limit=20), problems("eval")[:20], strict=True):
        a, b, c = prompt.meta["numbers"]
        assert prompt.text == f"Make {target} from {a}, {b} and {c}."
        assert prompt.target == str(target)
        assert sorted(prompt.meta["numbers"]) == list(numbers)
    assert len({tuple(p.meta["numbers"]) == tuple(sorted(p.meta["numbers"])) for p in prompts("eval")}) == 2  # mixed
