"""The entropy bonus follows its target, and its state survives a resume and a failed step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grpokit import Trainer, TrainerSetup, UsageError
from grpokit.builtin.entropy_target import EntropyTarget
from grpokit.objectives import GSPO
from grpokit.processes.team import Team
from grpokit.training.metrics import Tally
from tiny_policies import Fails, TinyTokens, digit_sum

PROMPTS = [str(i) for i in range(12)]


def seen(entropy: float) -> Tally:
    tally = Tally()
    tally.add("entropy", torch.tensor([[entropy - 0.125, entropy + 0.125, 99.0]]), torch.tensor([[True, True, False]]))
    tally.decided = 2
    return tally


def test_the_coefficient_by_hand() -> None:
    target = EntropyTarget(target=0.5, delta=0.25, low=0.125, high=0.625)
    own, course = GSPO(entropy_coef=0.25), []
    target.begin(TrainerSetup(objective=own, rewards=[], seed=0, team=Team()))
    assert target.objective(own) == GSPO()  # nothing is measured yet
    for entropy in (0.75, 0.5, 0.25, 0.25, 0.75, 0.75):
        target.updated(seen(entropy))
        course.append((target.metrics()["entropy_coef"], target.objective(own).entropy_coef))
    assert course == [(0.125, 0), (0.375, 0.375), (0.625, 0.625), (0.625, 0.625), (0.375, 0), (0.125, 0)]


def make(policy: TinyTokens | None = None, **options: Any) -> Trainer:
    target = EntropyTarget(target=1.5, delta=0.05)
    settings = {"modifiers": [target], "minibatches": 2, "learning_rate": 0.05, **options}
    return Trainer(policy or TinyTokens(), [digit_sum], PROMPTS, group_size=4, device="cpu", **settings)


def test_the_bonus_keeps_the_entropy_up() -> None:
    held, free = (list(make(steps=25, **options))[-5:] for options in ({}, {"modifiers": []}))
    mean = [sum(report.metrics["entropy"] for report in reports) / 5 for reports in (held, free)]
    assert mean[1] < 1.0 < 1.2 < mean[0]
    assert held[-1].metrics["entropy_coef"] > 0
    assert "entropy_coef" not in free[-1].metrics


def test_a_resumed_run_has_the_same_coefficients(tmp_path: Path) -> None:
    straight = make(learning_rate=0.1)
    reports = [straight.step() for _ in range(8)]
    assert len({report.metrics["entropy_coef"] for report in reports}) > 3
    stopped = make(learning_rate=0.1)
    for _ in range(5):
        stopped.step()
    stopped.save(tmp_path / "step")
    resumed = make(learning_rate=0.1)
    resumed.load(tmp_path / "step")
    for report in reports[5:]:
        again = resumed.step()
        assert again.metrics["entropy_coef"] == report.metrics["entropy_coef"]
        assert again.metrics["grad_norm"] == report.metrics["grad_norm"]


def test_a_failed_step_changes_no_coefficient() -> None:
    trainer = make(Fails())
    trainer.step()
    before = dict(trainer.modifiers[0].state_dict())
    trainer.policy.left = 2  # in the second of two updates
    with pytest.raises(ValueError, match="a fault"):
        trainer.step()
    assert trainer.modifiers[0].state_dict() == before


def test_what_cannot_work_is_told() -> None:
    with pytest.raises(UsageError, match=r"target is 1\.5, but this policy's logprobs\(\) gives no entropy"):
        make(TinyTokens(entropy=False)).step()
    with pytest.raises(UsageError, match=r"low <= high; got low=0\.5 and high=0\.1"):
        EntropyTarget(target=1, low=0.5, high=0.1)
