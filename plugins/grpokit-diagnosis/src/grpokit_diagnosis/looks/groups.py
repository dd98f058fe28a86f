"""Whether the samples of a group differ, and the reward sees it: without that, nothing is learned from a group."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from grpokit_diagnosis.evidence import Cause, Evidence, Look
from grpokit_diagnosis.total_range import total_range

if TYPE_CHECKING:
    from grpokit_diagnosis.probe.measure import Measured
    from grpokit_diagnosis.probe.usual_values import UsualValue

_NEAR = 0.1  # of the range of the reward, from its ends
_EMPTY = 0.5  # share of the groups without spread
_NEARLY_ALL = 0.9  # of them, so that drawing again does not find others
_WRONG = 0.2  # share of the advantages with the wrong sign, in small groups
_SMALL = 4  # samples, at most
_HELPS = 0.9  # of these in groups four times as large
_DECIDED = 0.75  # share of the spread that is the policy's doing
_WIDER = 2.0  # times the headroom, with which another temperature or noise is worth naming


def group_looks(evidence: Evidence) -> Iterator[Look]:
    """The spread inside groups, and what is in its way."""
    yield from _alike(evidence)
    yield from _empty(evidence)
    if evidence.measured:
        yield _size(evidence, evidence.measured)


def _alike(evidence: Evidence) -> Iterator[Look]:
    """Whether a usual temperature or noise would give the reward more to select from."""
    measured = evidence.measured
    if measured is None:
        return
    for usual in measured.usual_values:
        name = usual.key.removeprefix("policy.")
        own, other = measured.spread.headroom, usual.spread.headroom
        figures = (
            f"the best of a group is {own:.3g} above the mean with {name} {usual.own:g}, "
            f"{other:.3g} with {usual.value:g}"
        )
        inert = usual.decided is not None and usual.decided < _DECIDED
        if usual.decided is not None:
            figures += f"; what the policy decides makes {usual.decided:.0%} of the spread with {usual.own:g}"
        cause = _wider(measured, usual) if other > _WIDER * own or inert else None
        yield Look(topic=f"{name} of the samples", figures=figures, cause=cause)


def _wider(measured: Measured, usual: UsualValue) -> Cause:
    name = usual.key.removeprefix("policy.")
    return Cause(
        id="samples-alike",
        title="The samples of a group are almost alike: what the policy decides hardly changes them.",
        advice=f"Set the {name} to {usual.value:g} in place of {usual.own:g}: then there is something to select from.",
        overrides=[f"{usual.key}={usual.value:g}"],
    )


def _empty(evidence: Evidence) -> Iterator[Look]:
    """Groups without spread, and why."""
    share = evidence.logged("frac_reward_zero_std")
    if math.isnan(share):
        return
    figures = f"{share:.0%} of the groups had no spread"
    measured = evidence.measured
    reason = ""
    if measured:
        counts = dict(measured.spread.without)
        share = sum(counts.values()) / measured.spread.groups
        figures += f"; of {measured.spread.groups} drawn again {sum(counts.values()) or 'all had one'}"
        if counts:
            listed = ", ".join(f"{count} {why}" for why, count in counts.items())
            figures += f" had none ({listed})"
            reason = max(counts, key=lambda each: counts[each])
    elif share >= _EMPTY:
        reason = _by_level(evidence)
        figures += "; --probe tells whether their samples are simply the same"
    cause = _why(reason) if share >= _EMPTY else None
    if cause and cause.id != "samples-alike" and share < _NEARLY_ALL:
        again = max(evidence.config.trainer.dynamic_sampling + 1, math.ceil(1 / (1 - share)))
        advice = f"{cause.advice} Until then trainer.dynamic_sampling draws such groups again."
        cause = replace(cause, advice=advice, overrides=[f"trainer.dynamic_sampling={again}"])
    yield Look(topic="groups without spread", figures=figures, cause=cause)


def _by_level(evidence: Evidence) -> str:
    """Why groups have no spread, by the level of the reward alone; empty where that says nothing."""
    bottom, top = total_range(evidence.config)
    if bottom is None or top is None or not bottom < top:
        return ""
    level = (evidence.logged("reward") - bottom) / (top - bottom)
    if level > 1 - _NEAR:
        return "all at the top"
    return "all at the bottom" if level < _NEAR else ""


def _why(reason: str) -> Cause:
    """The cause behind most groups without spread."""
    if reason == "same outputs":
        return Cause(
            id="samples-alike",
            title="The samples of most groups are the same.",
            advice="Raise the temperature or the noise of the policy.",
        )
    if reason == "all at the top":
        return Cause(
            id="reward-saturated",
            title="Most groups have the highest score throughout: the reward has nothing left to teach.",
            advice="Take harder prompts, or a reward that still tells good samples apart.",
        )
    if reason == "all at the bottom":
        return Cause(
            id="prompts-too-hard",
            title="Most groups fail altogether: the prompts are too hard.",
            advice="Take easier prompts first, give credit for parts of an answer, or draw larger groups.",
        )
    return Cause(
        id="reward-coarse",
        title="The reward gives the samples of most groups the same score.",
        advice="Take a reward with finer steps, or leave out prompts on which it is constant.",
    )


def _size(evidence: Evidence, measured: Measured) -> Look:
    """Whether groups are too small to tell good from bad."""
    size = evidence.config.trainer.group_size
    wrong = measured.repeat.wrong
    shares = [f"{share:.0%} in groups of {each}" for each, share in wrong.items()]
    figures = f"with this reward's noise, so many advantages have the wrong sign: {', '.join(shares)}"
    cause = None
    if size <= _SMALL and wrong[size] >= _WRONG and wrong[4 * size] < _HELPS * wrong[size]:
        cause = Cause(
            id="group-too-small",
            title=f"Groups of {size} are too small: {wrong[size]:.0%} of the advantages have the wrong sign.",
            advice=f"Draw groups of {4 * size} or more; take fewer prompts in a step if memory or time are short.",
            overrides=[f"trainer.group_size={4 * size}"],
        )
    return Look(topic="size of the groups", figures=figures, cause=cause)
