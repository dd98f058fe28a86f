"""The job of `lm-countdown`: make a number from others, each used once, and the reward that checks the expression.

Asked "Make 22 from 3, 5 and 7.", an answer may try something else first:
`<think>3+5=8,8*7=56;3*5=15,15+7=22</think><answer>3*5+7</answer>`. The reward looks at the answer only: any
expression that uses the numbers and has the value is right.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from grpokit import DataError, Prompt, Sample
from grpokit.builtin.answers import unwrap
from grpokit.builtin.text_rewards import text_of, with_group
from grpokit.errors import brief
from grpokit.rewards.missing_inputs import text_target
from grpokit.sampling import permutation
from grpokit_lm.tasks.expressions import ExpressionError, compute
from grpokit_lm.tasks.splits import split_of

SIZES = {"eval": 200, "pretrain": 300}  # of the 892 problems; the rest is `train`
Step = tuple[int, str, int, int]  # 3 + 5 = 8
_NUMBERS = range(1, 8)
_LARGEST = 99  # of the targets
_ANSWER = r"<answer>([^<]*)</answer>\s*\Z"


class Countdown:
    """1 where the answer is an expression of the prompt's numbers, each used once, with the target's value; else 0.

    A sample's prompt has the target, and the numbers in `meta["numbers"]`; without both it is NaN.

    Args:
        pattern: its group matches the expression; by default what is in `<answer>` at the end of the text.
    """

    def __init__(self, *, pattern: str = _ANSWER) -> None:
        self.pattern = with_group(pattern, "countdown", finds="the expression", example="(.*)")

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """One number per sample."""
        return [self._one(sample) for sample in samples]

    def _one(self, sample: Sample) -> float:
        text = text_of(sample, "countdown")
        numbers, target = sample.prompt.meta.get("numbers"), sample.prompt.target
        if numbers is None or target is None:
            return math.nan
        wanted, value = _checked(numbers), _whole(target, "target")
        match = self.pattern.search(text)
        if match is None or match[1] is None:
            return 0.0
        for expression in unwrap(match[1]):
            try:
                computed = compute(expression)
            except ExpressionError:
                continue
            return float(Counter(computed.numbers) == wanted and computed.value == value)
        return 0.0


def unscorable(prompt: Prompt) -> str:
    """Why a prompt has no right answer; empty if it has one.

    Raises:
        DataError: its numbers or its target are none.
    """
    numbers, lacks = prompt.meta.get("numbers"), text_target(prompt)
    if lacks or numbers is None:
        return lacks or "there is no column 'numbers'"
    _checked(numbers)
    _whole(prompt.target, "target")
    return ""


def question(numbers: Sequence[int], target: int) -> str:
    """The text of a prompt."""
    *first, last = map(str, numbers)
    return f"Make {target} from {', '.join(first)} and {last}."


def solution(*tries: Sequence[Step]) -> str:
    """An answer that thinks of some ways, and gives the last one as an expression.

    >>> solution([(3, "*", 5, 15), (15, "+", 7, 22)])
    '<think>3*5=15,15+7=22</think><answer>3*5+7</answer>'
    >>> solution([(3, "+", 5, 8), (8, "+", 7, 15)], [(3, "+", 5, 8), (8, "*", 7, 56)])
    '<think>3+5=8,8+7=15;3+5=8,8*7=56</think><answer>(3+5)*7</answer>'
    """
    (a, sign, b, _), (_, further, c, _) = tries[-1]
    inner = f"({a}{sign}{b})" if further == "*" and sign != "*" else f"{a}{sign}{b}"
    thoughts = ";".join(",".join(f"{x}{op}{y}={z}" for x, op, y, z in steps) for steps in tries)
    return f"<think>{thoughts}</think><answer>{inner}{further}{c}</answer>"


@lru_cache(maxsize=1)
def solutions() -> dict[tuple[tuple[int, ...], int], list[list[Step]]]:
    """(numbers in rising order, target) -> the ways to make it in two steps, for all problems that have one."""
    ways: dict[tuple[tuple[int, ...], int], list[list[Step]]] = {}
    for numbers in itertools.combinations_with_replacement(_NUMBERS, 3):
        for a, b, c in sorted(set(itertools.permutations(numbers))):
            for sign, between in _results(a, b):
                for further, target in _results(between, c):
                    if target <= _LARGEST and not (a < b and sign != "-"):  # 3+5 and 5+3 are one way
                        ways.setdefault((numbers, target), []).append(
                            [(a, sign, b, between), (between, further, c, target)]
                        )
    return ways


def problems(split: str = "train") -> list[tuple[tuple[int, ...], int]]:
    """(numbers in rising order, target) of a split ("train", "eval" or "pretrain"); the splits share none."""
    return split_of(list(solutions()), split, sizes=SIZES, seed=5)


def shuffled(numbers: Sequence[int], target: int) -> list[int]:
    """The numbers in the order in which the prompt gives them."""
    return [numbers[i] for i in permutation(len(numbers), target, *numbers)]


def prompts(split: str = "train", limit: int | None = None) -> list[Prompt]:
    """The prompts of a split.

    Args:
        split: "train", "eval" or "pretrain".
        limit: only the first so many; None for all.
    """
    listed = ((shuffled(numbers, target), target) for numbers, target in problems(split)[:limit])
    return [Prompt(text=question(n, t), target=str(t), meta={"numbers": n}) for n, t in listed]


def _results(a: int, b: int) -> list[tuple[str, int]]:
    return [("+", a + b), ("*", a * b), *([("-", a - b)] if a > b else [])]


def _checked(numbers: Any) -> Counter[int]:
    if not isinstance(numbers, (list, tuple)) or not numbers:
        raise DataError(f"countdown: a prompt's `numbers` must be a list of whole numbers, got {brief(numbers)}.")
    return Counter(_whole(number, "number") for number in numbers)


def _whole(value: Any, what: str) -> int:
    try:
        if isinstance(value, (int, str)) and not isinstance(value, bool):
            return int(value)
    except ValueError:
        pass
    raise DataError(f"countdown: the {what} {brief(value)} is not a whole number.")
