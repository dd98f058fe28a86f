"""The sums of `lm-arithmetic` by hand, and its splits."""

from __future__ import annotations

import pytest

from grpokit import UsageError
from grpokit_lm.tasks.arithmetic import problems, prompts, solution


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (27, 45, "<think>7+5=12,2+4+1=7</think><answer>72</answer>"),
        (99, 99, "<think>9+9=18,9+9+1=19</think><answer>198</answer>"),
        (3, 40, "<think>3+0=3,0+4+0=4</think><answer>43</answer>"),
        (0, 0, "<think>0+0=0,0+0+0=0</think><answer>0</answer>"),
    ],
)
def test_solutions_by_hand(a: int, b: int, text: str) -> None:
    assert solution(a, b) == text


def test_splits_share_no_problem() -> None:
    splits = {name: problems(name) for name in ("train", "eval", "pretrain")}
    together = [pair for pairs in splits.values() for pair in pairs]
    assert len(together) == len(set(together)) == 100**2
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 6800, "eval": 200, "pretrain": 3000}
    with pytest.raises(UsageError, match="There are the splits train, eval, pretrain; got 'test'"):
        problems("test")


def test_prompts_carry_the_sum() -> None:
    expected = [(f"What is {a} + {b}?", str(a + b)) for a, b in problems("eval")[:20]]
    assert [(prompt.text, prompt.target) for prompt in prompts("eval", limit=20)] == expected
