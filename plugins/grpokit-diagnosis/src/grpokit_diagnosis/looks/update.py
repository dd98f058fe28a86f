"""Whether an update arrives in the weights, and is as long as it should be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from grpokit.errors import plural
from grpokit_diagnosis.evidence import Cause, Evidence, Look
from grpokit_diagnosis.symptom import recent

if TYPE_CHECKING:
    from grpokit_diagnosis.probe.gradients import Direction
    from grpokit_diagnosis.probe.line_search import Point
    from grpokit_diagnosis.probe.measure import Measured

_SWALLOWED = 0.5  # share of the numbers
_ROUNDED = 0.3  # share of the update
_DISTANCE = 3.0  # nats per action dimension by which runs that learn move log-probs in all their steps, if all add up
_SHORT = 0.15  # of that distance
_LEAP = 1.0  # nats in one step, after which nothing that the samples say holds
_MOST = 100.0  # times as long a step as before, in one go
_HARM = 0.1  # of the spread inside groups, by which a step lowers the reward
_BEYOND = 3.0  # times the longest step that was tried and was not worse
_WARMING = 0.5  # share of the updates
_DECAYED = 0.5  # by which weight decay shortens the weights over the run, as an exponent
_USUAL = 0.01  # nats in a step of runs that learn
_WEAK_LORA, _STRONG_LORA = 1.0, 4.0  # alpha / r


def update_looks(evidence: Evidence, *, follows: bool) -> Iterator[Look]:
    """What becomes of a gradient.

    Args:
        evidence: what is known.
        follows: whether something before the update is a cause, which may have left the gradient without a direction.
    """
    measured = evidence.measured
    arriving = [*_epsilon(evidence)]
    if measured:
        arriving += _rounding(evidence, measured)
    yield from arriving
    yield from _warm_up(evidence)
    yield from _decay(evidence)
    if measured:
        arrives = all(look.cause is None for look in arriving)
        length = _length(evidence, measured, arrives=arrives)
        yield length
        follows = follows or not arrives or length.cause is not None
        yield _direction(evidence, measured, follows=follows)


def _warm_up(evidence: Evidence) -> Iterator[Look]:
    """Whether the learning rate gets where it should."""
    trainer = evidence.config.trainer
    updates = evidence.updates
    if not trainer.warmup_steps:
        return
    figures = f"the learning rate rises over {trainer.warmup_steps} updates, and the run has {updates}"
    cause = None
    if trainer.warmup_steps > _WARMING * updates:
        shorter = updates // 20
        cause = Cause(
            id="warm-up-too-long",
            title="The warm-up takes up most of the run.",
            advice=f"Lower trainer.warmup_steps from {trainer.warmup_steps} to {shorter}.",
            overrides=[f"trainer.warmup_steps={shorter}"],
        )
    yield Look(topic="warm-up", figures=figures, cause=cause)


def _decay(evidence: Evidence) -> Iterator[Look]:
    """Whether weight decay takes away what is learned."""
    trainer = evidence.config.trainer
    if not trainer.weight_decay:
        return
    mean_rate = trainer.learning_rate * (1.0 if trainer.schedule == "constant" else 0.5)
    exponent = trainer.weight_decay * mean_rate * evidence.updates
    figures = f"weight decay alone would leave {math.exp(-exponent):.0%} of each weight"
    cause = None
    if exponent > _DECAYED:
        cause = Cause(
            id="weight-decay-too-strong",
            title="Weight decay pulls the weights to 0.",
            advice=f"Set trainer.weight_decay from {trainer.weight_decay:g} to 0.",
            overrides=["trainer.weight_decay=0"],
        )
    yield Look(topic="weight decay", figures=figures, cause=cause)


def _epsilon(evidence: Evidence) -> Iterator[Look]:
    """Updates that Adam's epsilon swallows, perhaps because gradients were clipped before."""
    trainer, measured = evidence.config.trainer, evidence.measured
    swallowed = measured.arrival.swallowed if measured else evidence.logged("updates_swallowed")
    if math.isnan(swallowed):
        return
    figures = f"adam_epsilon={trainer.adam_epsilon:g} at least halves {swallowed:.0%} of the updates"
    cause = None
    if measured and measured.clipped > 1.05:
        figures += (
            f"; clipping makes gradients {measured.clipped:.3g} times shorter, and {measured.arrival.passed:.2g} of an "
            f"update gets past epsilon, {measured.arrival.passed_unclipped:.2g} without clipping"
        )
    if swallowed >= _SWALLOWED:
        cause = Cause(
            id="epsilon-swallows",
            title="Adam's epsilon swallows the updates.",
            always=True,
            advice="Set trainer.adam_epsilon to 1e-15: it is larger than the gradients.",
            overrides=["trainer.adam_epsilon=1e-15"],
        )
        if measured and _clipping_takes_more(measured):
            limit = trainer.max_grad_norm or 1.0
            wider = max(1.0, float(f"{limit * measured.clipped:.1g}"))
            cause = Cause(
                id="gradient-clipped",
                title="Clipping makes the gradients so small that Adam's epsilon swallows them.",
                always=True,
                advice=f"Raise trainer.max_grad_norm from {limit:g} to {wider:g}.",
                overrides=[f"trainer.max_grad_norm={wider:g}"],
            )
    yield Look(topic="Adam's epsilon and gradient clipping", figures=figures, cause=cause)


def _clipping_takes_more(measured: Measured) -> bool:
    """Whether clipping shrinks an update by more than epsilon alone would."""
    arrival = measured.arrival
    return arrival.passed < arrival.passed_unclipped**2


def _rounding(evidence: Evidence, measured: Measured) -> Iterator[Look]:
    """What is lost in weights of 16 bits; in larger ones only updates that are far too short are lost."""
    arrival = measured.arrival
    if not arrival.in_16_bits:
        return
    figures = f"{arrival.rounded:.0%} of an update is lost by rounding"
    cause = None
    if arrival.rounded >= _ROUNDED:
        cause = Cause(
            id="weights-rounded",
            title="The weights hold numbers of 16 bits, which round the updates away.",
            always=True,
            advice="Keep the weights that are trained in float32, and compute with trainer.mixed_precision: bf16.",
            overrides=["policy.dtype=float32"] if "dtype" in evidence.policy else [],
        )
    yield Look(topic="rounding of the weights", figures=figures, cause=cause)


def _length(evidence: Evidence, measured: Measured, *, arrives: bool) -> Look:
    """Whether steps are too short for the run, or too long for the policy."""
    steps = evidence.config.trainer.steps
    empty = sum(measured.spread.without.values()) / measured.spread.groups
    reach = steps * measured.logprob_change / max(1 - empty, 0.01)  # if all groups taught something
    distance = _DISTANCE * min(1.0, _entropy(evidence))
    figures = (
        f"a step moves log-probs by {measured.logprob_change:.2g} nats and the whole run by at most {reach:.2g}, where "
        f"runs that learn move about {distance:.2g}; on held-out prompts the reward changes by {_told(measured.search)}"
    )
    cause = None
    own = next(point for point in measured.search if point.length == 1)
    longest = _longest(measured)
    if own.verdict <= 0 and (measured.logprob_change > _LEAP or longest < 1):
        wanted = max(_USUAL, distance / steps) / max(measured.logprob_change, 1e-12)
        cause = _too_long(evidence, min(longest or 0.01, wanted))
    elif reach < _SHORT * distance and arrives and empty < 1 and longest >= 1:
        most = _MOST if longest == measured.search[-1].length else _BEYOND * longest
        cause = _too_short(evidence, min(most, distance / max(reach, 1e-12)))
    return Look(topic="length of a step", figures=figures, cause=cause)


def _entropy(evidence: Evidence) -> float:
    """Nats of a decision at the beginning, which a policy of tokens can give away; 1 where it is not logged."""
    entropy = recent(evidence.run.metrics[:3], "entropy")
    return 1.0 if math.isnan(entropy) else entropy


def _told(search: Sequence[Point]) -> str:
    """The gains of a line search."""
    gains = []
    for point in search[1:]:
        words = {0.1: "a tenth of a step", 1: "one step"}.get(point.length, f"{point.length:g} steps at once")
        width = "" if math.isnan(point.width) else f" ± {point.width:.2g}"
        broken = math.isinf(point.gain)
        gains.append(f"the policy breaks after {words}" if broken else f"{point.gain:+.3g}{width} after {words}")
    return ", ".join(gains)


def _longest(measured: Measured) -> float:
    """The longest step before the first one that does harm; 0 where the shortest does."""
    longest = 0.0
    for point in measured.search:
        if point.verdict < 0 and -point.gain > _HARM * measured.spread.inside:
            break
        longest = point.length
    return longest


def _too_long(evidence: Evidence, factor: float) -> Cause:
    rate = evidence.config.trainer.learning_rate
    lower = float(f"{rate * min(0.5, max(0.001, factor)):.1g}")
    return Cause(
        id="step-too-long",
        title="Steps are too long.",
        always=True,
        advice=f"Lower trainer.learning_rate from {rate:g} to {lower:g}.",
        overrides=[f"trainer.learning_rate={lower:g}"],
    )


def _too_short(evidence: Evidence, factor: float) -> Cause:
    factor = float(f"{factor:.1g}")
    least = "at least " if factor == _MOST else ""
    rate = evidence.config.trainer.learning_rate
    lora = evidence.config.policy.params.get("lora")
    lora = lora if isinstance(lora, dict) else {}
    alpha, rank = lora.get("alpha"), lora.get("r")
    if alpha and rank and alpha / rank <= _WEAK_LORA and not lora.get("rslora"):
        larger = min(_STRONG_LORA * rank, alpha * factor)
        overrides = [f"policy.lora.alpha={larger:g}"]
        advice = f"Raise policy.lora.alpha from {alpha:g} to {larger:g}"
        left = factor * alpha / larger
        if left > 1:
            overrides.append(f"trainer.learning_rate={rate * left:.2g}")
            advice += f" and trainer.learning_rate from {rate:g} to {rate * left:.2g}"
        return Cause(
            id="lora-too-weak",
            title=f"The adapter counts too little: alpha / r is {alpha / rank:g}.",
            advice=f"{advice}.",
            overrides=overrides,
        )
    return Cause(
        id="step-too-short",
        title="Steps are too small for this run.",
        advice=f"Raise trainer.learning_rate from {rate:g} to {least}{rate * factor:.2g}, or take more steps.",
        overrides=[f"trainer.learning_rate={rate * factor:.2g}"],
    )


def _direction(evidence: Evidence, measured: Measured, *, follows: bool) -> Look:
    """Whether there is a direction at all."""
    own, groups = measured.direction, evidence.config.trainer.prompts_per_step
    cosine = own.cosine(groups)
    figures = f"the gradients of two steps have a cosine of {cosine:.2f}; signal equals noise at {_groups(own)}"
    cause = None
    rises = any(point.verdict > 0 for point in measured.search)
    if not (follows or own.is_clear or rises or measured.gained) and own.noise > 0:
        many = min(own.balance, 8 * groups)
        cause = Cause(
            id="gradient-noise",
            title="The gradients of different groups do not agree: they are mostly noise.",
            advice=f"Learn from more groups in a step: trainer.prompts_per_step from {groups} to {many:.0f}.",
            overrides=[f"trainer.prompts_per_step={many:.0f}"],
        )
    return Look(topic="direction of the gradient", figures=figures, cause=cause)


def _groups(own: Direction) -> str:
    """The number of groups at which signal equals noise, as far as so many groups can tell."""
    most = own.groups / 2**1.5  # where the signal is two standard errors
    return plural(max(1, round(own.balance)), "group") if own.balance < most else f"more than {most:.0f} groups"
