"""Statistics of episodes, from what the policy tells in `Sample.info`. NaN where it does not tell it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grpokit.types import Sample


def episode_length(samples: Sequence[Sample]) -> list[float]:
    """The steps of each episode: `info["length"]`.

    Args:
        samples: B samples.

    Returns:
        B numbers; NaN where the policy does not tell it.
    """
    return _told(samples, "length")


def mean_action(samples: Sequence[Sample]) -> list[float]:
    """The mean of each episode's actions, of discrete ones of their numbers: `info["mean_action"]`.

    Arguments and results as of `episode_length`.
    """
    return _told(samples, "mean_action")


def action_changes(samples: Sequence[Sample]) -> list[float]:
    """How much each episode's action changes from step to step: `info["action_changes"]`.

    Of discrete actions it is the share of the steps whose action differs from the one before, of others the mean
    distance. Arguments and results as of `episode_length`.
    """
    return _told(samples, "action_changes")


def _told(samples: Sequence[Sample], name: str) -> list[float]:
    return [float(sample.info.get(name, math.nan)) for sample in samples]
