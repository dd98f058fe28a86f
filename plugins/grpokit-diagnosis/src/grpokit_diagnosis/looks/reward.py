"""Whether the reward says what is wanted, and says the same twice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpokit_diagnosis.evidence import Cause, Evidence, Look

if TYPE_CHECKING:
    from grpokit_diagnosis.probe.repeatability import Repeatability
    from grpokit_diagnosis.probe.targets import TargetScore

_NOISY = 0.6  # share of the spread inside groups that is noise
_LOWER = 0.5  # share of the samples that score better than their target
_AGAINST = -0.5  # correlation of two rewards


def reward_looks(evidence: Evidence) -> Iterator[Look]:
    """The sign of the reward, its noise, and whether rewards oppose each other."""
    measured = evidence.measured
    if measured and measured.target:
        yield _sign(evidence, measured.target)
    yield from _opposed(evidence)
    if measured:
        yield _noise(measured.repeat)


def _sign(evidence: Evidence, target: TargetScore) -> Look:
    cause = None
    if target.lower >= _LOWER:
        negative = [i for i, reward in enumerate(evidence.config.rewards) if reward.weight < 0]
        overrides = [f"rewards.{i}.weight={-evidence.config.rewards[i].weight:g}" for i in negative]
        cause = Cause(
            id="reward-sign",
            title="The reward prefers what is worse.",
            always=True,
            advice="Turn the sign of the reward or of its weight: the highest total must be the best picture.",
            overrides=overrides,
        )
    figures = (
        f"the target pictures themselves score {target.target:.3g}, the samples {target.samples:.3g}; "
        f"{target.lower:.0%} of the samples score better than their target"
    )
    return Look(topic="sign of the reward", figures=figures, cause=cause)


def _noise(repeat: Repeatability) -> Look:
    jittered = "" if repeat.jittered is None else f", of copies that look the same {repeat.jittered:.0%}"
    figures = f"of the spread inside groups, {repeat.again:.0%} differs when the samples are scored again{jittered}"
    cause = None
    if repeat.noise >= _NOISY:
        often = math.ceil(repeat.noise / (1 - repeat.noise)) if repeat.noise < 0.95 else 20
        cause = Cause(
            id="reward-noise",
            title="Most of the reward is noise.",
            advice=f"Make the reward repeatable, or score each sample about {often} times and take the mean.",
        )
    return Look(topic="noise of the reward", figures=figures, cause=cause)


def _opposed(evidence: Evidence) -> Iterator[Look]:
    """A look at each pair of trained rewards."""
    rewards = [name for name, weight in evidence.run.weights.items() if weight and name != "reward"]
    for place, first in enumerate(rewards):
        for second in rewards[place + 1 :]:
            logged = evidence.logged(f"correlation/{first}/{second}")
            if math.isnan(logged):
                continue
            signs = math.copysign(1, evidence.run.weights[first] * evidence.run.weights[second])
            together = signs * logged
            figures = (
                f"inside groups {first} and {second}, with the signs of their weights, correlate by {together:+.2f}"
            )
            cosine = evidence.measured.cosines.get(f"{first} and {second}") if evidence.measured else None
            if cosine is not None:
                figures += f"; the cosine of their gradients is {cosine:+.2f}"
            cause = None
            if together <= _AGAINST:
                cause = Cause(
                    id="rewards-oppose",
                    title=f"The rewards {first} and {second} pull against each other.",
                    advice="Decide which one matters: lower the weight of the other one, or keep it as a monitor.",
                    overrides=_without(evidence, second),
                )
            yield Look(topic=f"{first} against {second}", figures=figures, cause=cause)


def _without(evidence: Evidence, name: str) -> list[str]:
    """The override that makes a reward a monitor."""
    places = list(evidence.run.rewards)
    return [f"rewards.{places.index(name)}.weight=0"] if name in places else []
