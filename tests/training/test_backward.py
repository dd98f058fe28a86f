"""What a pass asks a policy for, and the slope that it predicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from grpokit import Ask, Decisions, Rollout, Trainer, objectives
from tiny_policies import OBJECTIVES_BY_NAME, TinyGaussian, TinyTokens, digit_sum, nearness

PROMPTS = [str(i) for i in range(12)]


class Asked(TinyTokens):
    """Keeps what it was asked for, and whether with gradient."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asks: list[tuple[str, bool, bool]] = []

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = Ask()) -> Decisions:
        self.asks.append((ask.entropy, ask.moments, torch.is_grad_enabled()))
        return super().logprobs(rollout, steps)


class AskedGaussian(TinyGaussian, Asked):
    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = Ask()) -> Decisions:
        self.asks.append((ask.entropy, ask.moments, torch.is_grad_enabled()))
        return super().logprobs(rollout, steps)


@pytest.mark.parametrize(
    ("policy", "objective", "expected"),
    [
        (Asked(), objectives.GRPO(kl_coef=0.1), {("no", False, False), ("value", False, True)}),
        (Asked(), objectives.GRPO(entropy_coef=0.1), {("grad", False, True)}),
        # whole sequences in slices: the first pass reads the entropy, the second has its gradient
        (Asked(slices=2), objectives.GSPO(entropy_coef=0.1), {("grad", False, False), ("grad", False, True)}),
        (Asked(slices=2), objectives.GSPO(), {("value", False, False), ("no", False, True)}),
        (AskedGaussian(), objectives.GRPO(kl="gaussian", kl_coef=0.1), {("no", True, False), ("value", True, True)}),
    ],
)
def test_a_policy_is_asked_for_what_the_loss_reads(
    policy: Asked, objective: objectives.Objective, expected: set[tuple[str, bool, bool]]
) -> None:
    reward = nearness if isinstance(policy, TinyGaussian) else digit_sum
    Trainer(policy, [reward], PROMPTS, objective=objective, device="cpu").step()
    probe = {("no", False, False)} if objective.needs_reference else set()  # the reference's sample
    assert set(policy.asks) - probe == expected - probe
    assert expected <= set(policy.asks)


class Sloped(TinyTokens):
    """Holds the slope that is predicted against the gradient that arrives."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.without = 0

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = Ask()) -> Decisions:
        new = super().logprobs(rollout, steps)
        if not torch.is_grad_enabled():
            return new
        if ask.slope is None:
            self.without += 1
            return new
        middle = rollout.rows // 2
        halves = (slice(0, middle), slice(middle, rollout.rows))
        with torch.no_grad():  # as in the forward pass of an autograd function
            predicted = torch.cat([ask.slope(new.logprobs[rows], rows) for rows in halves])
        logprobs = new.logprobs * 1
        logprobs.register_hook(lambda gradient: self.pairs.append((predicted, gradient)))
        return replace(new, logprobs=logprobs)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("name", OBJECTIVES_BY_NAME)
def test_the_predicted_slope_is_the_gradient(name: str, slices: int) -> None:
    policy = Sloped(slices=slices, dtype=torch.float64)
    objective = OBJECTIVES_BY_NAME[name](kl_coef=0.1, entropy_coef=0.01)
    Trainer(
        policy, [digit_sum], PROMPTS, objective=objective, micro_batch_size=6, updates_per_rollout=2,
        learning_rate=0.05, device="cpu",
    ).step()  # fmt: skip
    # where a row's decisions are in several slices, the loss of whole sequences is no function of one slice's
    assert (policy.without > 0) == (objective.whole_sequence and slices > 1)
    assert len(policy.pairs) > 0
    assert any(gradient.abs().max() > 0 for _, gradient in policy.pairs)
    for predicted, gradient in policy.pairs:
        assert (predicted - gradient).abs().max() <= 1e-12 * gradient.abs().max()


def test_the_loss_of_moments_has_no_slope() -> None:
    class SlopedGaussian(TinyGaussian):
        def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = Ask()) -> Decisions:
            assert ask.slope is None
            return super().logprobs(rollout, steps)

    objective = objectives.GRPO(kl="gaussian", kl_coef=0.1)
    Trainer(SlopedGaussian(), [nearness], PROMPTS, objective=objective, device="cpu").step()
