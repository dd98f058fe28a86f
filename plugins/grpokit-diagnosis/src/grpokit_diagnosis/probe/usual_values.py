"""The usual value of what makes the samples of a group differ, and what the reward and the gradient make of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from grpokit import registry
from grpokit.config.schema import RunConfig
from grpokit.rewards.scoring import join_scores
from grpokit.training.metrics import correlation
from grpokit_diagnosis.probe.gradients import Direction, direction
from grpokit_diagnosis.probe.rebuilt import rebuilt
from grpokit_diagnosis.probe.spread import Spread, spread
from grpokit_diagnosis.probe.steps import take

USUAL = {"temperature": 1.0, "noise": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""Parameters of policies that decide how much samples differ, with values that leave them free."""
_LOWER = 0.7  # times the usual value, below which that one is tried
_FEW, _HIGH = 20, 0.2  # tokens that top_k leaves, and the min_p, which hold samples together
_BESIDE_A_START = ("noise",)  # those whose samples also differ in the noise that they start with


def _is_narrow(name: str, own: float) -> bool:
    """Whether a value lets samples differ by much less than the usual one."""
    if name == "top_k":
        return 0 < own < _FEW
    if name == "min_p":
        return own > _HIGH
    return 0 < own < _LOWER * USUAL[name]


@dataclass(frozen=True, kw_only=True)
class UsualValue:
    """Steps with another value.

    Attributes:
        key: of the config.
        own: the run's value.
        value: that was tried.
        spread: of the samples' totals.
        direction: of the gradient.
        decided: share of the reward's spread inside groups that the policy's decisions make with the run's own value;
            the rest follows from the noise that a sample starts with. None where decisions are all that is random.
    """

    key: str
    own: float
    value: float
    spread: Spread
    direction: Direction
    decided: float | None


def usual_values(
    config: RunConfig, changed: Callable[[str], RunConfig], checkpoint: Path | None, *, steps: int
) -> list[UsualValue]:
    """Take the same steps with the usual value of each parameter that is narrower.

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
        if not isinstance(own, int | float) or not _is_narrow(name, own):
            continue
        key = f"policy.{name}"
        with rebuilt(changed(f"{key}={value}"), checkpoint, changed=True) as run:
            taken = list(take(run, steps))
            scores = join_scores(run.terms, [each.scores for each in taken])
        samples = [sample for each in taken for sample in each.samples]
        gradients = torch.cat([each.of_rewards for each in taken])
        tried.append(
            UsualValue(
                key=key,
                own=float(own),
                value=value,
                spread=spread(samples, scores, top=None, bottom=None),
                direction=direction(gradients),
                decided=_decided(changed, checkpoint, key, float(own)) if name in _BESIDE_A_START else None,
            )
        )
    return tried


def _decided(changed: Callable[[str], RunConfig], checkpoint: Path | None, key: str, own: float) -> float:
    """How much of the spread inside groups is gone when decisions hardly differ, from the same starts."""
    totals = []
    for value in (own, own / 1000):
        with rebuilt(changed(f"{key}={value}"), checkpoint, changed=True) as run:
            prompts = run.trainer.train_prompts[: run.trainer.prompts_per_step]
            _, scores = run.sample(prompts, run.trainer.group_size, evaluate=False)
        totals.append(scores.totals)
    alike = correlation(totals[0], totals[1], scores.groups)
    return 1.0 if math.isnan(alike) else 1 - max(0.0, alike) ** 2
