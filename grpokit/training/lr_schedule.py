"""The learning rate as a pure function of the update's index, so a resume needs no schedule state."""

from __future__ import annotations

import math


def learning_rate(update: int, *, peak: float, schedule: str, warmup: int, total: int) -> float:
    """The rate of the update with this index, from 0, of `total`: it rises to `peak` over the first `warmup` updates.

    Then it is "constant", or falls to 0 at the end: "linear" or "cosine".

    >>> [round(learning_rate(i, peak=1.0, schedule="cosine", warmup=2, total=6), 3) for i in (0, 1, 2, 4, 6)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    >>> [learning_rate(i, peak=1.0, schedule="linear", warmup=2, total=6) for i in (0, 1, 2, 3, 6)]
    [0.5, 1.0, 1.0, 0.75, 0.0]
    """
    rate = peak * min(1.0, (update + 1) / max(1, warmup))
    progress = min(1.0, max(0, update - warmup) / max(1, total - warmup))
    if schedule == "linear":
        rate *= 1 - progress
    elif schedule == "cosine":
        rate *= (1 + math.cos(math.pi * progress)) / 2
    return rate
