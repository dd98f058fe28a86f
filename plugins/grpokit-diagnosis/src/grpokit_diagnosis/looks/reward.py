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
_PREFERRED = 0.5  # share of the samples that count more than their target
_AGAINST, _CANCEL = -0.5, -0.9  # correlation of two rewards
_UNSCORED = 0.3  # share of the samples


def reward_looks(evidence: Evidence) -> Iterator[Look]:
    """The sign of the reward, its noise, and whether rewards oppose each other."""
    measured = evidence.measured
    for target in measured.targets if measured else ():
        yield _sign(evidence, target)
    yield from _unscored(evidence)
    yield from _opposed(evidence)
    if measured:
        yield _noise(measured.repeat)


def _sign(evidence: Evidence, target: TargetScore) -> Look:
    """Whether a reward that compares with the target has the wrong sign."""
    cause = None
    if target.preferred >= _PREFERRED:
        weight = evidence.run.weights.get(target.reward, 1.0)
        cause = Cause(
            id="reward-sign",
            title=f"The reward {target.reward} prefers what is worse.",
            always=True,
            advice=f"Turn the sign of {target.reward} or of its weight: the target itself must add most to the total.",
            overrides=_weight(evidence, target.reward, -weight) if weight < 0 else [],
        )
    figures = (
        f"{target.reward} gives the target pictures themselves {target.target:.3g}, the samples {target.samples:.3g}; "
        f"{target.preferred:.0%} of the samples add more to the total than their own target would"
    )
    return Look(topic=f"sign of {target.reward}", figures=figures, cause=cause)


def _unscored(evidence: Evidence) -> Iterator[Look]:
    """Samples without a score, from which nothing is learned."""
    trainer = evidence.config.trainer
    rows = evidence.logged("unscored_rows")
    if not rows > 0:
        return
    share = rows / (trainer.prompts_per_step * trainer.group_size)
    cause = None
    if share >= _UNSCORED:
        cause = Cause(
            id="samples-unscored",
            title="Many samples have no score.",
            advice="Find out which prompts or outputs a reward cannot score: grpokit try shows it for one sample.",
        )
    yield Look(topic="samples without a score", figures=f"{share:.0%} of the samples had none", cause=cause)


def _noise(repeat: Repeatability) -> Look:
    jittered = "" if repeat.jittered is None else f", scoring copies that look the same {repeat.jittered:.0%}"
    figures = f"scoring the same samples again changes {repeat.again:.0%} of the spread inside groups{jittered}"
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
            sign = math.copysign(1, evidence.run.weights[first] * evidence.run.weights[second])
            together = sign * logged
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
                    always=together <= _CANCEL,
                    advice="Decide which one matters: lower the weight of the other one, or keep it as a monitor.",
                    overrides=_weight(evidence, second, 0.0),
                )
            yield Look(topic=f"{first} against {second}", figures=figures, cause=cause)


def _weight(evidence: Evidence, name: str, weight: float) -> list[str]:
    """The override that gives a reward another weight."""
    places = list(evidence.run.rewards)
    return [f"rewards.{places.index(name)}.weight={weight:g}"] if name in places else []
