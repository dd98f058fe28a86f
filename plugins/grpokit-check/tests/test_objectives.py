"""The checks of objectives: right ones pass, and each mistake is caught by its check."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from grpokit import UsageError, registry
from grpokit.objectives import GRPO, GSPO, Loss, Objective
from grpokit_check import objective_checks, outcomes

BUILT_IN = [spec.name for _, spec in registry.installed("objective")]
KL = {"kl_coef": 0.1}


def failed(checks: Any) -> dict[str, str]:
    return {o.name: o.message for o in outcomes(checks) if o.failed}


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_objectives(name: str) -> None:
    assert not failed(objective_checks(registry.create("objective", name)))


@pytest.mark.parametrize(
    "params",
    [
        KL,
        {**KL, "kl": "gaussian"},
        {**KL, "kl": "velocity"},
        {**KL, "kl_bias_correction": True},
        {"entropy_coef": 0.01},
        {"off_policy_mask_threshold": 0.2},
        {"ratio": "guard"},
    ],
)
def test_settings_keep_the_contract(params: dict[str, Any]) -> None:
    assert not failed(objective_checks(registry.create("objective", "grpo", params)))


def test_settings_that_suit_no_decision_are_refused() -> None:
    with pytest.raises(UsageError, match="kl 'k3' does not suit decisions of 3 dimensions"):
        next(objective_checks(registry.create("objective", "nft", KL)))
    with pytest.raises(UsageError, match=r"need a grpokit\.Objective, got 'grpo'"):
        next(objective_checks("grpo"))  # type: ignore[arg-type]


class TurnedRound(GRPO):
    def __call__(self, *args: Any, **settings: Any) -> Loss:
        loss = super().__call__(*args, **settings)
        return replace(loss, value=-loss.value)


class OldOverNew(GRPO):
    """The inverse ratio: right in value at the start, and wrong in slope."""

    def __call__(self, new: Any, old: Any, advantages: Tensor, mask: Tensor, *args: Any, **settings: Any) -> Loss:
        return super().__call__(
            replace(new, logprobs=2 * old.logprobs - new.logprobs), old, advantages, mask, *args, **settings
        )


class AbsoluteAdvantage(GRPO):
    """Raises what was bad, too."""

    def __call__(self, new: Any, old: Any, advantages: Tensor, *args: Any, **settings: Any) -> Loss:
        return super().__call__(new, old, advantages.abs(), *args, **settings)


class TurnedRoundAway(GRPO):
    """Right at a ratio of 1 alone, as if a sign were lost on one side of a clip."""

    def __call__(self, *args: Any, **settings: Any) -> Loss:
        loss = super().__call__(*args, **settings)
        near = (loss.stats["ratio"] - 1).abs() < 1e-3
        return replace(loss, value=torch.where(near, loss.value, -loss.value))


class Detached(GRPO):
    def __call__(self, new: Any, *args: Any, **settings: Any) -> Loss:
        return super().__call__(new.detach(), *args, **settings)


class HoldsToOld(GRPO):
    """A pull towards the old policy in the policy loss, whatever the advantage."""

    def __call__(self, new: Any, old: Any, advantages: Tensor, mask: Tensor, *args: Any, **settings: Any) -> Loss:
        loss = super().__call__(new, old, advantages, mask, *args, **settings)
        pull = torch.where(mask, new.logprobs - old.logprobs, 0.0).square()
        factor = settings.get("correction")
        return replace(loss, value=loss.value + (pull if factor is None else pull * factor))


class MaskedAtTheEnd(GRPO):
    """Zero times NaN is NaN, and so is its gradient."""

    def __call__(self, new: Any, old: Any, advantages: Tensor, mask: Tensor, *args: Any, **settings: Any) -> Loss:
        loss = super().__call__(new, old, advantages, mask, *args, **settings)
        return replace(loss, value=loss.value + 0.0 * new.logprobs * mask)


class ReadsThePadding(GRPO):
    """A row's mean over what stands under the mask, too."""

    def __call__(self, new: Any, old: Any, advantages: Tensor, mask: Tensor, *args: Any, **settings: Any) -> Loss:
        loss = super().__call__(new, old, advantages, mask, *args, **settings)
        drift = (new.logprobs - old.logprobs).detach().mean(1, keepdim=True).clamp(-1, 1)
        return replace(loss, value=loss.value * drift.exp())

    @property
    def whole_sequence(self) -> bool:
        return True


class NeedsNoAdvantages(GRPO):
    """Says so, and learns from them."""

    @property
    def needs_advantages(self) -> bool:
        return False


class AveragesTheBatch(GRPO):
    """Divides by the tokens of a micro-batch."""

    def __call__(self, new: Any, old: Any, advantages: Tensor, mask: Tensor, *args: Any, **settings: Any) -> Loss:
        loss = super().__call__(new, old, advantages, mask, *args, **settings)
        return replace(loss, value=loss.value / mask.sum())


class SaysSingleDecisions(GSPO):
    """One ratio per sequence, without saying so."""

    @property
    def whole_sequence(self) -> bool:
        return False


class Overflows(GRPO):
    """A ratio without a bound."""

    def __call__(self, new: Any, old: Any, advantages: Tensor, mask: Tensor, *args: Any, **settings: Any) -> Loss:
        loss = super().__call__(new, old, advantages, mask, *args, **settings)
        ratio = torch.where(mask, new.logprobs - old.logprobs, 0.0).mul(8).exp()
        return replace(loss, value=loss.value * ratio)


class Averaged(GRPO):
    def __call__(self, *args: Any, **settings: Any) -> Loss:
        loss = super().__call__(*args, **settings)
        return replace(loss, value=loss.value.mean())


class MeanAsStatistic(GRPO):
    def __call__(self, *args: Any, **settings: Any) -> Loss:
        loss = super().__call__(*args, **settings)
        return replace(loss, stats={**loss.stats, "mine": loss.value.mean().detach()})


class StatisticWithGradient(GRPO):
    def __call__(self, *args: Any, **settings: Any) -> Loss:
        loss = super().__call__(*args, **settings)
        return replace(loss, stats={**loss.stats, "mine": loss.value})


class InPlace(GRPO):
    def __call__(self, new: Any, old: Any, advantages: Tensor, *args: Any, **settings: Any) -> Loss:
        advantages *= 1.5
        return super().__call__(new, old, advantages, *args, **settings)


@dataclass(frozen=True, kw_only=True)
class ReadsTheMean(Objective):
    """Reads moments, and does not say that it needs them: another policy would give none."""

    def __call__(self, new: Any, *args: Any, **settings: Any) -> Loss:
        return replace(super().__call__(new, *args, **settings), value=new.mean.mean(-1))

    def policy_loss(self, ratio: Tensor, advantages: Tensor, *others: Any, **more: Any) -> Loss:
        return Loss(value=-ratio * advantages)


BROKEN: list[tuple[Objective, set[str]]] = [
    (TurnedRound(), {"sign"}),
    (TurnedRound(kl_coef=0.1), {"sign"}),
    (OldOverNew(), {"sign"}),
    (AbsoluteAdvantage(), {"sign"}),
    (TurnedRoundAway(), {"sign"}),
    (Detached(), {"sign", "mask"}),
    (HoldsToOld(), {"sign", "zero-advantage"}),
    (MaskedAtTheEnd(), {"mask"}),
    (ReadsThePadding(), {"mask"}),
    (NeedsNoAdvantages(), {"without-advantages"}),
    (AveragesTheBatch(), {"additive"}),
    (SaysSingleDecisions(), {"additive"}),
    (Overflows(), {"finite"}),
    (MeanAsStatistic(), {"statistics"}),
    (StatisticWithGradient(), {"statistics"}),
    (InPlace(), {"mask", "additive", "pure"}),
]


@pytest.mark.parametrize(("objective", "caught"), BROKEN)
def test_what_is_wrong_is_caught(objective: Objective, caught: set[str]) -> None:
    found = failed(objective_checks(objective))
    assert set(found) == caught, found
    assert all(re.match(r"Expected .*; got .*\. Usual cause: .*\.$", m, re.DOTALL) for m in found.values()), found


def test_a_loss_that_is_reduced_or_reads_what_it_did_not_ask_for() -> None:
    assert "a loss for each decision, (4, 5)" in failed(objective_checks(Averaged()))["finite"]
    assert "'NoneType' object has no attribute 'mean'" in failed(objective_checks(ReadsTheMean()))["finite"]
