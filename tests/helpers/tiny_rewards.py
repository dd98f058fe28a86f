"""Rewards that configs in tests name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from grpokit import Pending, Portion, Sample, registry


def letters(samples: Sequence[Sample], *, factor: float = 1.0) -> list[float]:
    """The number of letters; a `?` cannot be counted."""
    return [math.nan if sample.output == "?" else factor * len(sample.output) for sample in samples]


def negated(samples: Sequence[Sample]) -> list[float]:
    return [-x for x in letters(samples)]


def shortness(samples: Sequence[Sample]) -> list[float]:
    return [-float(len(sample.output)) for sample in samples]


def always_stops(samples: Sequence[Any]) -> list[float]:
    return [next(iter(())) for _ in samples]


class Elsewhere:
    """Scores in threads, a portion for each row, and cannot be called."""

    closed = 0

    def __init__(self, reward: str = "broken_components:good") -> None:
        self.reward, self.threads = registry.create("reward", reward), ThreadPoolExecutor(2)

    def submit(self, samples: Sequence[Sample]) -> Pending:
        return Pending([self.threads.submit(self._one, row, sample) for row, sample in enumerate(samples)])

    def _one(self, row: int, sample: Sample) -> Portion:
        return Portion(rows=[row], values=self.reward([sample]))

    def close(self) -> None:
        self.threads.shutdown()
        Elsewhere.closed += 1
