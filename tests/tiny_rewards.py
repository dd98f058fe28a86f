"""Rewards that configs in tests name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from grpokit import Sample


def letters(samples: Sequence[Sample], *, factor: float = 1.0) -> list[float]:
    """The number of letters; a `?` cannot be counted."""
    return [math.nan if sample.output == "?" else factor * len(sample.output) for sample in samples]


def negated(samples: Sequence[Sample]) -> list[float]:
    return [-x for x in letters(samples)]


def shortness(samples: Sequence[Sample]) -> list[float]:
    return [-float(len(sample.output)) for sample in samples]


def always_stops(samples: Sequence[Any]) -> list[float]:
    return [next(iter(())) for _ in samples]
