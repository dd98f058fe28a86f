"""The usual value of what makes the samples of a group differ, and the spread that it gives the reward."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from grpokit import Sample, registry
from grpokit.config.schema import RunConfig
from grpokit.rewards.scoring import Scores
from grpokit.training.metrics import correlation
from grpokit_diagnosis.probe.rebuilt import rebuilt
from grpokit_diagnosis.probe.spread import Spread, spread

_USUAL: Mapping[str, tuple[float, Callable[[float], bool]]] = {
    "temperature": (1.0, lambda own: 0 < own < 0.7),
    "noise": (0.7, lambda own: 0 < own < 0.5),
    "top_p": (1.0, lambda own: 0 < own < 0.7),
    "top_k": (0, lambda own: 0 < own < 20),
    "min_p": (0.0, lambda own: own > 0.2),
}
"""Parameters of policies that decide how much samples differ: a value that leaves them free, and what is narrow."""

_GROUPS = 32  # that are drawn


@dataclass(frozen=True, kw_only=True)
class UsualValue:
    """Groups that were drawn with another value.

    Attributes:
        key: of the config.
        own: the run's value.
        value: that was tried.
        spread: of the samples' totals.
        decided: share of the reward's spread inside groups that the policy's decisions make with the run's own value;
            the rest follows from the noise that a sample starts with. None where decisions are all that is random.
    """

    key: str
    own: float
    value: float
    spread: Spread
    decided: float | None


def usual_values(
    config: RunConfig, phase: str, changed: Callable[[str], RunConfig], checkpoint: Path | None
) -> list[UsualValue]:
    """Draw groups with the usual value of each parameter that is narrower.

    Args:
        config: the run's.
        phase: whose policy draws.
        changed: a text `key=value` -> the run's config with this change.
        checkpoint: whose weights draw.
    """

    def drawn(key: str, value: float) -> tuple[list[Sample], Scores]:
        """The same groups with a value of a key."""
        with rebuilt(changed(f"{key}={value}"), phase, checkpoint, changed=True) as run:
            prompts = run.trainer.train_prompts[:_GROUPS]
            return run.sample(prompts, run.trainer.group_size, evaluate=False)

    parameters = registry.parameters("policy", config.policy.use, config.policy.params)
    tried = []
    for name, (value, is_narrow) in _USUAL.items():
        own = parameters.get(name)
        if not isinstance(own, int | float) or not is_narrow(own):
            continue
        key = f"policy.{name}"
        decided = None
        if name == "noise":  # beside which samples differ in the noise that they start with
            _, scores = drawn(key, own)
            _, fixed = drawn(key, own / 1000)
            decided = _decided(scores, fixed)
        samples, scores = drawn(key, value)
        own_spread = spread(samples, scores, top=None, bottom=None)
        tried.append(UsualValue(key=key, own=float(own), value=value, spread=own_spread, decided=decided))
    return tried


def _decided(scores: Scores, fixed: Scores) -> float:
    """How much of the spread inside groups is gone where decisions hardly differ, from the same starts."""
    alike = correlation(scores.totals, fixed.totals, scores.groups)
    return 1.0 if math.isnan(alike) else 1 - max(0.0, alike) ** 2
