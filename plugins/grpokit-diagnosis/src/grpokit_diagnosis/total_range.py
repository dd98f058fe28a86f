"""The range of a run's totals, where the rewards' plugins say theirs."""

from __future__ import annotations

from grpokit import registry
from grpokit.config.schema import RunConfig


def total_range(config: RunConfig) -> tuple[float | None, float | None]:
    """The lowest and the highest weighted sum of the rewards that there can be; None for both where one is unknown."""
    bottom = top = 0.0
    for reward in config.rewards:
        if not reward.weight:
            continue
        spec = registry.spec_of("reward", reward.use)
        low, high = getattr(spec, "range", (None, None))
        if low is None or high is None:
            return None, None
        ends = sorted((reward.weight * low, reward.weight * high))
        bottom, top = bottom + ends[0], top + ends[1]
    return bottom, top
