"""Rewards that look at one output at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from grpokit.types import Sample

Reward: TypeAlias = Callable[[Sequence[Sample]], list[float]]


def one_by_one(measure: Callable[[object], float], *, like: Callable[..., Any]) -> Reward:
    """A reward that measures each output; it has the name and the docstring of another function."""

    def reward(samples: Sequence[Sample]) -> list[float]:
        return [measure(sample.output) for sample in samples]

    reward.__name__ = reward.__qualname__ = like.__name__
    reward.__module__ = like.__module__
    reward.__doc__ = like.__doc__
    return reward
