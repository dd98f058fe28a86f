"""What modifiers may change, and what the trainer makes of it: rows, weights, losses, states and mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpokit import (
    Batch,
    Modifier,
    Observer,
    RewardTerm,
    RunError,
    Signal,
    Step,
    Tally,
    Trainer,
    TrainerSetup,
    UsageError,
)
from grpokit.advantages import group
from grpokit.objectives import GRPO
from grpokit.training.minibatches import FixedLogprobs, minibatch
from tiny_policies import Fails, TinyTokens, digit_sum

PROMPTS = [str(i) for i in range(12)]


def make(*modifiers: Modifier, policy: TinyTokens | None = None, **options: Any) -> Trainer:
    settings = {"prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-2, "max_grad_norm": None, **options}
    own = policy or TinyTokens(dtype=torch.float64)
    return Trainer(own, [digit_sum], PROMPTS, modifiers=modifiers, device="cpu", **settings)


def gradient(trainer: Trainer) -> Tensor:
    """The gradient of the first optimizer step."""
    gradients: list[Tensor] = []
    trainer.updates.optimizer.register_step_pre_hook(
        lambda *_: gradients.append(torch.cat([p.grad.flatten() for p in trainer.updates.parameters]).clone())
    )
    trainer.step()
    return gradients[0]


@dataclass(kw_only=True)
class Weighted(Modifier):
    """Gives each row a weight, in the order of the groups."""

    weights: Sequence[float]

    def rows(self, signal: Signal, step: Step) -> Signal:
        return replace(signal, weights=torch.tensor(self.weights, dtype=torch.float64))


def by_hand(trainer: Trainer, weights: Sequence[float]) -> Tensor:
    """The gradient of GRPO's first update, where rows of weight 0 were never drawn."""
    report = make().step()
    rollout, advantages = report.rollout, report.advantages
    policy = TinyTokens(dtype=torch.float64)
    factors = torch.tensor(weights, dtype=torch.float64)
    mask = rollout.mask.double()
    logprobs = policy.logprobs(rollout, slice(0, rollout.mask.shape[1])).logprobs
    rows = -(torch.where(rollout.mask, logprobs, 0.0) * mask).sum(1) / mask.sum(1) * advantages.double()
    ((rows * factors).sum() / (factors != 0).sum()).backward()
    return torch.cat([p.grad.flatten() for p in policy.net.parameters()])


@pytest.mark.parametrize("size", [1, 3, 8])
def test_rows_of_weight_0_are_as_if_never_drawn(size: int) -> None:
    """No pass scores them, and the mean is over the others; a weight of 2 counts twice."""
    weights = [1, 0, 2, 1, 0, 0, 1, 0]
    trainer = make(Weighted(weights=weights), micro_batch_size=size)
    found, expected = gradient(trainer), by_hand(trainer, weights)
    assert (found - expected).norm() / expected.norm() < 1e-6
    assert sum(rows for rows, *_ in trainer.policy.scored) == 4


def test_a_step_without_any_row_changes_nothing() -> None:
    report = make(Weighted(weights=[0.0] * 8)).step()
    assert report.metrics["loss"] == report.metrics["grad_norm"] == 0
    assert any("no row is left" in line for line in report.warnings)


@dataclass(kw_only=True)
class Times(Modifier):
    factor: float

    def rows(self, signal: Signal, step: Step) -> Signal:
        return replace(signal, advantages=(signal.advantages + 1) * self.factor)


def test_modifiers_act_in_their_order() -> None:
    plain, changed = make().step(), make(Times(factor=2.0), Times(factor=3.0)).step()
    torch.testing.assert_close(changed.advantages, ((plain.advantages + 1) * 2 + 1) * 3)


class Reads(Modifier):
    """Keeps what a minibatch has of the decisions before the updates."""

    needs_entropy = True
    needs_reference = True

    def minibatch(self, batch: Batch) -> Batch:
        self.batch = batch
        return batch


def test_what_a_modifier_needs_is_there_without_a_kl() -> None:
    reads = Reads()
    trainer = make(reads)
    report = trainer.step()
    assert "kl" not in report.metrics
    with torch.no_grad(), trainer.policy.reference():
        expected = trainer.policy.logprobs(reads.batch.rollout, slice(0, reads.batch.mask.shape[1])).logprobs
    mask = reads.batch.mask
    torch.testing.assert_close(reads.batch.reference.logprobs[mask], expected[mask])
    assert (reads.batch.entropy[mask] > 0).all()


class Counts(Modifier):
    """Counts updates, with an advantage of that sign."""

    def __init__(self) -> None:
        self.count = 0

    def rows(self, signal: Signal, step: Step) -> Signal:
        return replace(signal, advantages=signal.advantages * (1 + self.count))

    def updated(self, tally: Tally) -> None:
        self.count += tally.decided

    def metrics(self) -> dict[str, float]:
        return {"counts/decisions": self.count}

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def test_a_resume_and_a_failed_step_keep_its_state(tmp_path: Path) -> None:
    straight = make(Counts())
    reports = [straight.step() for _ in range(3)]
    counts = [report.metrics["counts/decisions"] for report in reports]
    assert 0 < counts[0] < counts[1] < counts[2]
    stopped = make(Counts())
    stopped.step()
    stopped.save(tmp_path / "step")
    resumed = make(Counts())
    resumed.load(tmp_path / "step")
    for report in reports[1:]:
        again = resumed.step()
        assert again.metrics["loss"] == report.metrics["loss"]
        assert again.metrics["counts/decisions"] == report.metrics["counts/decisions"]
    failing = make(Counts(), policy=Fails(), minibatches=2)
    failing.policy.left = 2  # in the second of two updates
    with pytest.raises(ValueError, match="a fault"):
        failing.step()
    assert failing.modifiers[0].count == 0


@pytest.mark.parametrize("modifiers", [Counts(), None])
def test_modifiers_are_a_list(modifiers: Any) -> None:
    with pytest.raises(UsageError, match="modifiers must be a list, got"):
        Trainer(TinyTokens(), [digit_sum], PROMPTS, modifiers=modifiers, device="cpu")


@pytest.mark.parametrize("lacking", ["state_dict", "load_state_dict"])
def test_half_a_state_is_refused(lacking: str) -> None:
    method = "state_dict" if lacking == "load_state_dict" else "load_state_dict"
    half = type("Half", (Modifier, Observer), {method: getattr(Counts, method)})
    message = f"s/Half has {method} but no {lacking}"
    with pytest.raises(UsageError, match=message):
        make(half())
    with pytest.raises(UsageError, match=message):
        make(observers={"Half": half()})


@pytest.mark.parametrize("state", [None, {"seen": {1}}, {"seen": [torch.ones(1)]}], ids=str)
def test_a_state_that_no_checkpoint_can_hold_is_refused(state: Any) -> None:
    kind = type("Odd", (Counts,), {"state_dict": lambda self: state})
    with pytest.raises(RunError, match="No checkpoint can hold the state of modifiers/Odd"):
        make(kind())


def test_the_objective_of_each_update_may_have_other_coefficients() -> None:
    class NoKL(Modifier):
        def objective(self, objective: GRPO) -> GRPO:
            return replace(objective, kl_coef=0.0)

    with_kl, without = (make(*own, objective=GRPO(kl_coef=5.0), updates_per_rollout=2) for own in ((), (NoKL(),)))
    plain = make(updates_per_rollout=2)
    losses = [trainer.step().metrics["loss"] for trainer in (with_kl, without, plain)]
    assert losses[0] != losses[1] == losses[2]


class LooksUp(Modifier):
    """Keeps what it decided for all rows, and finds it again for those of an optimizer step."""

    def rows(self, signal: Signal, step: Step) -> Signal:
        self.step, self.kept = step, signal.advantages
        return signal

    def minibatch(self, batch: Batch) -> Batch:
        torch.testing.assert_close(self.kept[batch.numbers].to(batch.advantages), batch.advantages)
        return batch


def test_the_numbers_of_a_batch_are_places_in_the_signal() -> None:
    looks_up = LooksUp()
    make(looks_up, minibatches=2).step()
    step = looks_up.step
    batch = minibatch(
        step.rollout, FixedLogprobs(), Signal.of(torch.arange(16.0)), torch.arange(16),
        replace(step.draw.all_rows, decided=torch.ones(16), share=slice(8, 16)),  # as a second process has it
        reduction="token_mean", before_updates=True, filler=None,
    )  # fmt: skip
    assert batch.numbers.tolist() == batch.advantages.tolist() == list(range(8, 16))


class Wrong(Modifier):
    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def rows(self, signal: Signal, step: Step) -> Any:
        return replace(signal, **self.fields) if self.fields else None


@pytest.mark.parametrize(
    ("modifier", "words"),
    [
        (Wrong(), "expected a grpokit.Signal"),
        (Wrong(advantages=torch.zeros(3)), r"Wrong gave advantages of the shape \(3,\)"),
        (Wrong(advantages=torch.zeros(8, 99)), r"of the shape \(8,\) or \(8, \d\)"),
        (Wrong(weights=torch.full((8,), torch.nan)), r"gave weights, 8 of them not finite"),
        (Wrong(weights=[1.0] * 8), "gave weights a list of 8; expected numbers"),
        (Wrong(advantages=torch.ones(8, requires_grad=True)), "gave advantages with a gradient"),
        (Wrong(kl_weights=torch.full((8,), -1.0)), "gave kl_weights below 0"),
    ],
)
def test_a_wrong_signal_stops_the_step(modifier: Modifier, words: str) -> None:
    with pytest.raises(RunError, match=words):
        make(modifier).step()


class WrongUpdate(Modifier):
    """Answers to one of the methods around an update with something else."""

    def __init__(self, method: str, answer: Callable[..., Any]) -> None:
        setattr(self, method, answer)


@pytest.mark.parametrize(
    ("method", "answer", "words"),
    [
        ("minibatch", lambda batch: None, "expected a grpokit.Batch"),
        ("minibatch", lambda batch: replace(batch, weights=-batch.weights), "gave weights below 0"),
        ("minibatch", lambda batch: replace(batch, advantages=None), "gave advantages nothing"),
        ("minibatch", lambda batch: replace(batch, weights=[1.0]), "gave weights a list of 1"),
        ("minibatch", lambda batch: replace(batch, mask=~batch.mask), "gave another mask"),
        ("minibatch", lambda batch: replace(batch, numbers=None), "gave another numbers"),
        ("minibatch", lambda batch: replace(batch, entropy=torch.ones(1)), "gave another entropy"),
        ("minibatch", lambda batch: replace(batch, kl_weights=batch.weights), "gave kl_weights of the shape"),
        ("minibatch", lambda batch: batch.select(torch.tensor([1, 0])), "gave another rollout"),
        (
            "minibatch",
            lambda batch: replace(batch, advantages=batch.advantages[:3]),
            r"shape \(3,\); expected numbers, without a gradient, of the shape \(8,\)",
        ),
        ("objective", lambda objective: None, "expected a grpokit.Objective"),
        ("objective", lambda objective: replace(objective, reduction="token_mean"), "changed the reduction"),
        ("objective", lambda objective: replace(objective, kl_coef=0.5), "raised kl_coef from 0 to 0.5"),
        ("metrics", lambda: None, "expected numbers by names"),
        ("metrics", lambda: {"own": torch.ones(2)}, "for 'own'; expected NaN or a number between"),
        ("metrics", lambda: {"own": 1e200}, "for 'own'; expected NaN or a number between"),
        ("metrics", lambda: {"own": 10**400}, "for 'own'; expected NaN or a number between"),
        ("metrics", lambda: {"own": math.inf}, "for 'own'; expected NaN or a number between"),
        ("metrics", lambda: {"loss": 0.0}, "is called 'loss'"),
        ("metrics", lambda: {"phase": 0.0}, "is called 'phase'"),
    ],
)
def test_a_wrong_answer_stops_the_step(method: str, answer: Callable[..., Any], words: str) -> None:
    with pytest.raises(RunError, match=words):
        make(WrongUpdate(method, answer)).step()


def test_two_of_one_class_have_their_own_metrics_and_states(tmp_path: Path) -> None:
    class Other(Modifier):
        pass

    first, second = Counts(), type("Counts", (Counts,), {})()  # as of two packages
    trainer = make(first, Other(), second)
    second.count = 1000
    metrics = trainer.step().metrics
    assert metrics["counts/decisions"] == first.count
    assert metrics["counts/decisions/Counts-2"] == second.count == first.count + 1000
    trainer.save(tmp_path / "step")
    elsewhere = Counts(), Counts()
    make(Other(), *elsewhere).load(tmp_path / "step")  # a run that was changed by force
    assert [own.count for own in elsewhere] == [first.count, second.count]


def test_a_row_may_get_an_advantage_for_each_decision() -> None:
    """The later half of each row teaches nothing, as if an advantage function had said so."""

    class FirstHalf(Modifier):
        def rows(self, signal: Signal, step: Step) -> Signal:
            early = torch.arange(step.draw.all_rows.width) < step.draw.all_rows.width // 2
            return replace(signal, advantages=signal.advantages[:, None] * early)

    def first_half(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
        return group(rewards, weights, groups)[:, None] * (torch.arange(width) < width // 2)

    width = make().step().rollout.mask.shape[1]
    found, expected = gradient(make(FirstHalf())), gradient(make(advantage=first_half))
    assert expected.norm() > 0
    torch.testing.assert_close(found, expected)


def test_what_changes_the_weights_in_place_leaves_the_kl_alone() -> None:
    class InPlace(Modifier):
        def rows(self, signal: Signal, step: Step) -> Signal:
            signal.weights.mul_(2)
            return signal

    losses = []
    for own in (InPlace(), Weighted(weights=[2] * 8)):
        trainer = make(own, objective=GRPO(kl_coef=5.0))
        losses.append([trainer.step().metrics["loss"] for _ in range(2)])
    assert losses[0] == losses[1]


def test_a_minibatch_knows_whether_weights_have_changed() -> None:
    seen = []

    class Looks(Modifier):
        def minibatch(self, batch: Batch) -> Batch:
            seen.append(batch.before_updates)
            return batch

    make(Looks(), updates_per_rollout=2, minibatches=2).step()
    assert seen == [True, False, False, False]


def test_advantages_that_a_modifier_takes_away_are_no_equal_rewards() -> None:
    class Later(Modifier):
        def rows(self, signal: Signal, step: Step) -> Signal:
            signal.advantages.mul_(step.number < 2)
            return signal

    trainer = make(Later(), max_zero_std_steps=2)
    reports = [trainer.step() for _ in range(4)]
    assert [report.metrics["advantage/abs_max"] > 0 for report in reports] == [True, False, False, False]
    assert [report.metrics["frac_reward_zero_std"] for report in reports] == [0, 0, 0, 0]
    assert not trainer.converged


def test_what_cannot_work_is_refused_before_the_first_step() -> None:
    class Monitors(Modifier):
        monitors = ("other",)

    class Picky(Modifier):
        def begin(self, setup: TrainerSetup) -> None:
            assert [term.name for term in setup.rewards] == ["digit_sum"]
            raise UsageError("Not with this one.")

    with pytest.raises(UsageError, match="Monitors reads the monitor 'other', but there is no such monitor"):
        make(Monitors())
    Monitors.monitors = "other"  # type: ignore[assignment]
    with pytest.raises(UsageError, match=r"monitors of Monitors must be a list of texts, as in \['other'\]"):
        make(Monitors())
    Monitors.monitors = ("other",)
    with pytest.raises(UsageError, match="Not with this one"):
        make(Picky())
    with pytest.raises(UsageError, match="Expected an object of a"):
        make(Picky)  # type: ignore[arg-type]
    term = RewardTerm(name="other", reward=digit_sum, weight=0.0)
    Trainer(TinyTokens(), [digit_sum, term], PROMPTS, modifiers=[Monitors()], device="cpu")
