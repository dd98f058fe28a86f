"""Splits of a task's problems that share none, the same on every machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from grpokit import UsageError
from grpokit.sampling import permutation

T = TypeVar("T")


def split_of(problems: Sequence[T], split: str, *, sizes: Mapping[str, int], seed: int) -> list[T]:
    """The problems of one split, in a fixed mixed order.

    Args:
        problems: all of them.
        split: one of `sizes`, or "train" for all that is left.
        sizes: how many problems each other split takes.
        seed: of the order.

    Raises:
        UsageError: there is no such split.
    """
    if split not in ("train", *sizes):
        raise UsageError(f"There are the splits train, {', '.join(sizes)}; got {split!r}.")
    mixed = [problems[i] for i in permutation(len(problems), seed)]
    start = 0
    for name, size in sizes.items():
        if name == split:
            return mixed[start : start + size]
        start += size
    return mixed[start:]
