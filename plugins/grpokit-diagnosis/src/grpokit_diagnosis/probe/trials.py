"""The usual value of what makes the samples of a group differ, and what the reward and the gradient make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from grpokit import registry
from grpokit.config.schema import RunConfig
from grpokit.rewards.scoring import join_scores
from grpokit_diagnosis.probe.gradients import Direction, direction
from grpokit_diagnosis.probe.rebuilt import rebuilt
from grpokit_diagnosis.probe.spread import Spread, spread
from grpokit_diagnosis.probe.steps import take

USUAL = {"temperature": 1.0, "noise": 0.7}
"""Parameters of policies that decide how much samples differ, with values that others use."""
_LOWER = 0.7  # times the usual value, below which that one is tried


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Steps with another value.

    Attributes:
        key: of the config.
        own: the run's value.
        value: that was tried.
        spread: of the samples' totals.
        direction: of the gradient.
    """

    key: str
    own: float
    value: float
    spread: Spread
    direction: Direction


def trials(
    config: RunConfig, changed: Callable[[str], RunConfig], checkpoint: Path | None, *, steps: int
) -> list[Trial]:
    """Take the same steps with the usual value of each parameter that is lower.

    Args:
        config: the run's.
        changed: a text `key=value` -> the run's config with this change.
        checkpoint: whose weights draw.
        steps: how many are taken.
    """
    parameters = registry.parameters("policy", config.policy.use, config.policy.params)
    tried = []
    for name, value in USUAL.items():
        own = parameters.get(name)
        if not isinstance(own, int | float) or not 0 < own < _LOWER * value:
            continue
        key = f"policy.{name}"
        with rebuilt(changed(f"{key}={value}"), checkpoint, changed=True) as run:
            taken = list(take(run, steps))
            scores = join_scores(run.terms, [each.scores for each in taken])
        samples = [sample for each in taken for sample in each.samples]
        gradients = torch.cat([each.of_rewards for each in taken])
        tried.append(
            Trial(
                key=key,
                own=float(own),
                value=value,
                spread=spread(samples, scores, top=None, bottom=None),
                direction=direction(gradients),
            )
        )
    return tried
