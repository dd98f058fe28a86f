"""Steps that are taken from the same weights, and the gradients of their groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from grpokit import Modifier, Signal, Step, Trainer
from grpokit.config import presets
from grpokit.objectives import GRPO
from grpokit_diagnosis.probe.rebuilt import Rebuilt
from grpokit_diagnosis.probe.steps import Taken, take
from tiny_policies import TinyTokens, digit_sum


@dataclass(kw_only=True)
class GoodOnly(Modifier):
    """Leaves the rows out that are worse than their group."""

    def rows(self, signal: Signal, step: Step) -> Signal:
        return replace(signal, weights=signal.weights * (signal.advantages > 0))


def taken(**options: Any) -> tuple[Rebuilt, list[Taken]]:
    """Two steps of a tiny policy of tokens that the KL holds."""
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
    run = Rebuilt(config=config, policies={}, trainer=trainer, held_out=[])
    return run, list(take(run, 2))


def test_steps_start_from_the_same_weights() -> None:
    run, (first, second) = taken()
    untrained = torch.cat([p.flatten() for p in TinyTokens().net.parameters()])
    assert torch.equal(torch.cat([w.flatten() for w in run.weights()]), untrained)
    for step in (first, second):
        assert max(float(change.abs().max()) for change in step.change) > 0
        assert step.logprob_change > 0
    assert [sample.group for sample in first.samples] != [sample.group for sample in second.samples]


def test_the_mean_over_groups_is_the_gradient_that_was_clipped() -> None:
    _, (first, _) = taken()
    assert first.gradients.shape[0] == 4
    assert float(first.gradients.mean(0).norm()) == pytest.approx(first.norms[0], rel=1e-5)


def test_without_a_change_of_weights_the_kl_has_no_gradient() -> None:
    _, (first, _) = taken()
    assert first.beside is not None
    assert float(first.beside.norm()) < 1e-6


def test_rows_that_a_modifier_leaves_out_have_no_gradient_beside_either() -> None:
    _, (first, _) = taken(modifiers=[GoodOnly()])
    assert first.beside is not None
    assert first.beside.shape == first.gradients.shape
