"""Steps that are taken from the same weights, and the gradients of their groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from grpokit import Modifier, Signal, Step, Trainer, UsageError
from grpokit.config import presets
from grpokit.objectives import GRPO
from grpokit_diagnosis.probe.rebuilt import Rebuilt
from grpokit_diagnosis.probe.steps import Taken, take
from tiny_policies import TinyTokens, digit_sum


@dataclass(kw_only=True)
class Nothing(Modifier):
    """Leaves all rows out."""

    def rows(self, signal: Signal, step: Step) -> Signal:
        return replace(signal, weights=torch.zeros_like(signal.weights))


@dataclass(kw_only=True)
class GoodOnly(Modifier):
    """Leaves the rows out that are worse than their group."""

    def rows(self, signal: Signal, step: Step) -> Signal:
        return replace(signal, weights=signal.weights * (signal.advantages > 0))


def rebuilt(**options: Any) -> Rebuilt:
    """A run of a tiny policy of tokens that the KL holds."""
    trainer = Trainer(
        TinyTokens(),
        [digit_sum],
        [str(i) for i in range(8)],
        prompts_per_step=4,
        group_size=8,
        learning_rate=1e-2,
        device="cpu",
        objective=GRPO(kl_coef=0.1),
        **options,
    )
    config, _ = presets.read_config("toy-lm")
    return Rebuilt(
        config=config, completed=0, policies={"": trainer.policy}, trainer=trainer, evaluated=[], held_out=[]
    )


def taken(**options: Any) -> list[Taken]:
    """Two steps of such a run."""
    steps, _ = take(rebuilt(**options), 2)
    return steps


def test_steps_start_from_the_same_weights() -> None:
    run = rebuilt()
    (first, second), change = take(run, 2)
    untrained = torch.cat([p.flatten() for p in TinyTokens().net.parameters()])
    assert torch.equal(torch.cat([w.flatten() for w in run.weights()]), untrained)
    for step in (first, second):
        assert step.length > 0
        assert step.logprob_change > 0
    common = torch.cat([part.flatten() for part in change]).norm()
    assert float(common) == pytest.approx((first.length + second.length) / 2, rel=1e-5)
    assert [sample.group for sample in first.samples] != [sample.group for sample in second.samples]


def test_the_mean_over_groups_is_the_gradient_that_was_clipped() -> None:
    first, _ = taken(max_grad_norm=1e-6)
    assert first.gradients.shape[0] == 4
    assert float(first.gradients.mean(0).norm()) == pytest.approx(first.clipped * 1e-6, rel=1e-5)


def test_without_a_change_of_weights_the_kl_has_no_gradient() -> None:
    first, _ = taken()
    assert first.regulariser is not None
    assert float(first.regulariser.norm()) < 1e-6


def test_rows_that_a_modifier_leaves_out_have_no_gradient_of_the_kl_either() -> None:
    first, _ = taken(modifiers=[GoodOnly()])
    assert first.regulariser is not None
    assert first.regulariser.shape == first.gradients.shape


def test_a_modifier_that_leaves_all_rows_out_is_named() -> None:
    with pytest.raises(UsageError, match="leave out all samples"):
        taken(modifiers=[Nothing()])
