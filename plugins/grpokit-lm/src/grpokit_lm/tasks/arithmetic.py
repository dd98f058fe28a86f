"""The job of `lm-arithmetic`: add two numbers below 100, thinking one digit at a time, with the carry.

Asked "What is 27 + 45?", a perfect answer is `<think>7+5=12,2+4+1=7</think><answer>72</answer>`.
"""

from __future__ import annotations

from grpokit import Prompt
from grpokit_lm.tasks.splits import split_of

SIZES = {"eval": 200, "pretrain": 3000}  # of the 10,000 problems; the rest is `train`


def question(a: int, b: int) -> str:
    """The text of a prompt."""
    return f"What is {a} + {b}?"


def solution(a: int, b: int) -> str:
    """The perfect answer: ones, then tens with what is carried, then the sum.

    >>> solution(27, 45)
    '<think>7+5=12,2+4+1=7</think><answer>72</answer>'
    >>> solution(3, 4)
    '<think>3+4=7,0+0+0=0</think><answer>7</answer>'
    """
    (tens, ones), (more_tens, more_ones) = divmod(a, 10), divmod(b, 10)
    low = ones + more_ones
    carry = low // 10
    thoughts = f"{ones}+{more_ones}={low},{tens}+{more_tens}+{carry}={tens + more_tens + carry}"
    return f"<think>{thoughts}</think><answer>{a + b}</answer>"


def problems(split: str = "train") -> list[tuple[int, int]]:
    """The pairs of numbers of a split ("train", "eval" or "pretrain"); the splits share none."""
    return split_of([(a, b) for a in range(100) for b in range(100)], split, sizes=SIZES, seed=3)


def prompts(split: str = "train", limit: int | None = None) -> list[Prompt]:
    """The prompts of a split, each with the sum as its target.

    Args:
        split: "train", "eval" or "pretrain".
        limit: only the first so many; None for all.
    """
    return [Prompt(text=question(a, b), target=str(a + b)) for a, b in problems(split)[:limit]]
