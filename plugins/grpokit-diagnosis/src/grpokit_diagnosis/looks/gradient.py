"""Whether the gradient has a direction, and which one: rewards, KL, stale samples, the clip range."""

from __future__ import annotations

import math
from collections.abc import Iterator

from grpokit_diagnosis.evidence import Cause, Evidence, Look
from grpokit_diagnosis.symptom import recent

_STALE = 0.9  # effective sample size below which rollouts are not the policy's own
_FREE = 0.1  # nats per action dimension from the reference, where a policy has room
_MOVED = 1e-3  # nats in a step, a hundred of which change samples
_CLIPPED = 0.4  # share of the decisions
_WIDEST = 0.5  # clip range
_STRONG = 1.5  # times as long as the rewards' gradient


def gradient_looks(evidence: Evidence) -> Iterator[Look]:
    """What shapes the gradient."""
    yield from _stale(evidence)
    yield from _kl(evidence)
    yield from _clip_range(evidence)


def _stale(evidence: Evidence) -> Iterator[Look]:
    rows = evidence.run.metrics  # all of them, since a difference may grow
    difference, share = recent(rows, "logprob_diff/mean"), recent(rows, "logprob_diff/ess")
    if math.isnan(difference) or math.isnan(share):
        return
    figures = f"log-probs of drawing and of training differ by {difference:.2g} nats; effective sample size {share:.0%}"
    measured = evidence.measured
    unchanged = measured is not None and measured.logprob_change > _MOVED and measured.search[-1].same_outputs == 1
    if unchanged:
        figures += "; samples stay the same after a hundred steps at once"
    cause = None
    if share < _STALE or unchanged:
        trainer = evidence.config.trainer
        ahead = trainer.updates_per_step <= trainer.max_policy_lag < 2 * trainer.updates_per_step  # by a step
        cause = Cause(
            id="stale-rollouts",
            title="The rollouts do not come from the policy that learns.",
            always=True,
            advice="Give the engine the latest weights before each step, and draw with the settings of training. "
            "With trainer.max_policy_lag: 0 nothing is drawn ahead, and an engine that lags stops the run. "
            "trainer.correction makes up for small differences.",
            overrides=["trainer.max_policy_lag=0"] if ahead else [],
        )
    yield Look(topic="rollouts of the same policy", figures=figures, cause=cause)


def _kl(evidence: Evidence) -> Iterator[Look]:
    """Whether the KL is stronger than the rewards."""
    measured = evidence.measured
    if measured is None:
        return
    coefficient = evidence.objective.get("kl_coef")
    if not coefficient:
        return
    ratio = measured.regulariser
    figures = f"with kl_coef={coefficient:g} the KL's gradient is {ratio:.2g} times as long as that of the rewards"
    cause = None
    if ratio >= _STRONG:
        held = recent(evidence.run.metrics[-10:], "kl")
        factor = math.sqrt(max(held, 1e-9) / _FREE) if held > 0 else 0.01  # a distance is in inverse proportion
        lower = float(f"{coefficient * min(0.2, factor):.1g}")
        cause = Cause(
            id="kl-too-strong",
            title="The KL holds the policy where it began.",
            advice=f"Lower kl_coef to {lower:g}, and watch kl and the samples.",
            overrides=[f"{evidence.objective_key('kl_coef')}={lower:g}"],
        )
    yield Look(topic="KL against the rewards", figures=figures, cause=cause)


def _clip_range(evidence: Evidence) -> Iterator[Look]:
    low, high = evidence.logged("clip_ratio/low_mean"), evidence.logged("clip_ratio/high_mean")
    if math.isnan(low) or math.isnan(high):
        return
    figures = f"{low:.1%} of the decisions are clipped below and {high:.1%} above"
    several = evidence.config.trainer.updates_per_step > 1
    cause = _clipped(evidence) if low + high >= _CLIPPED and several else None
    yield Look(topic="clip range", figures=figures, cause=cause)


def _clipped(evidence: Evidence) -> Cause:
    """A clip range that stops most of the learning, and how much wider it should be."""
    usual = evidence.objective_defaults
    ends = [name for name in ("clip_range", "clip_range_high") if evidence.objective.get(name)]
    change = evidence.measured.logprob_change if evidence.measured else 0.0
    overrides = []
    for name in ends:
        own = evidence.objective[name]
        wider = max(2 * own, min(_WIDEST, 2 * change), usual.get(name) or 0.0)
        overrides.append(f"{evidence.objective_key(name)}={wider:.2g}")
    fewer = "make fewer updates with each rollout (trainer.updates_per_rollout, trainer.minibatches)"
    return Cause(
        id="clip-too-narrow",
        title="The clip range stops most of the learning.",
        always=True,
        advice=f"Widen {' and '.join(ends)}, or {fewer}." if ends else f"{fewer.capitalize()}.",
        overrides=overrides,
    )
