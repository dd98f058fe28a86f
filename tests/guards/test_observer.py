"""Observers follow a step, and stop it without a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grpokit import LearningStep, Observer, RunError, Step, Trainer, UsageError
from grpokit.training import checkpoint
from tiny_policies import TinyTokens, digit_sum

SIZES = {"prompts_per_step": 2, "group_size": 4, "minibatches": 2, "updates_per_rollout": 2, "device": "cpu"}


class Diary(Observer):
    """Notes each moment, and stops at one."""

    def __init__(self, stop: tuple[int, str] | None = None) -> None:
        self.stop, self.entries = stop, list[tuple[Any, ...]]()

    def note(self, moment: str, step: Step, *facts: Any) -> list[str]:
        update = getattr(step, "update", 0)
        self.entries.append((moment, step.number, update, *facts))
        if self.stop == (step.number, moment):
            raise RunError(f"Stopped when {moment}.")
        return [f"{moment} {update}"]

    def scored(self, step: Step) -> list[str]:
        return self.note("scored", step, step.rollout.rows, tuple(step.scores.totals.shape))

    def weighted(self, step: LearningStep) -> list[str]:
        return self.note("weighted", step, float(step.advantages.sum()))

    def differentiated(self, step: LearningStep) -> list[str]:
        return self.note("differentiated", step, step.minibatch.rollout.rows, len(step.tallies))

    def updated(self, step: LearningStep) -> list[str]:
        return self.note("updated", step, step.norms[-1] > 0)

    def state_dict(self) -> dict[str, Any]:
        return {"count": len(self.entries)}

    def load_state_dict(self, state: Any) -> None:
        del self.entries[state["count"] :]


def make(diary: Diary, name: str = "diary") -> Trainer:
    return Trainer(TinyTokens(), [digit_sum], ["1", "2", "3", "4"], observers={name: diary}, **SIZES)


def test_an_observer_sees_each_moment_in_its_order() -> None:
    diary = Diary()
    report = make(diary).step()
    (scored, weighted), updates = diary.entries[:2], diary.entries[2:]
    assert scored == ("scored", 1, 0, 8, (8,))
    assert weighted == ("weighted", 1, 0, pytest.approx(0, abs=1e-5))
    assert updates == [
        entry
        for update in (1, 2, 3, 4)
        for entry in (("differentiated", 1, update, 4, update), ("updated", 1, update, True))
    ]
    assert [line for line in report.warnings if line.startswith("updated")] == [f"updated {i}" for i in (1, 2, 3, 4)]


@pytest.mark.parametrize(("moment", "made"), [("scored", 0), ("weighted", 0), ("differentiated", 0), ("updated", 1)])
def test_a_step_that_an_observer_stops_is_as_if_it_had_not_been(moment: str, made: int) -> None:
    diary, plain = Diary(), Diary()
    trainer, straight = make(diary), make(plain)
    trainer.step()
    before, entries = [p.clone() for p in trainer.policy.net.parameters()], len(diary.entries)
    diary.stop = (2, moment)
    with pytest.raises(RunError, match=f"Stopped when {moment}"):
        trainer.step()
    assert (trainer.completed, trainer.updates.done, len(diary.entries)) == (1, made, entries)
    if made:
        return
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.policy.net.parameters(), strict=True))
    diary.stop = None
    straight.step()
    assert trainer.step().metrics["loss"] == straight.step().metrics["loss"]
    assert diary.entries == plain.entries


@pytest.mark.parametrize("name", ["diary", "optimizer", "position", "policy", "zero_std"])
def test_a_checkpoint_keeps_an_observer_of_any_name_beside_the_rest(name: str, tmp_path: Path) -> None:
    straight, again = make(Diary(), name), make(Diary(), name)
    straight.step()
    straight.save(tmp_path / "state")
    assert checkpoint.broken_off(checkpoint.read_state(tmp_path / "state")) is None
    again.load(tmp_path / "state")
    assert again.completed == 1
    assert again.step().metrics["loss"] == straight.step().metrics["loss"]


def test_an_observer_that_a_checkpoint_does_not_know_stays_as_it_is(tmp_path: Path) -> None:
    first, again = make(Diary(), "a"), make(Diary(), "b")
    first.step()
    first.save(tmp_path / "state")
    (diary,) = (each for each in again.observers.values() if isinstance(each, Diary))
    diary.entries.append(("before",))
    again.load(tmp_path / "state")
    assert diary.entries == [("before",)]


@pytest.mark.parametrize(
    ("observers", "message"),
    [
        ({"diary": Diary}, r"The observer 'diary' is .*; expected a grpokit\.Observer"),
        ({"diary": None}, "The observer 'diary' is nothing"),
        ({"../diary": Diary()}, r"An observer's name may have .*, got '\.\./diary'"),
    ],
)
def test_what_is_no_observer_is_refused(observers: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Trainer(TinyTokens(), [digit_sum], ["1", "2"], observers=observers, **SIZES)


def test_an_observer_may_forget_to_return_its_warnings() -> None:
    class Silent(Observer):
        def scored(self, step: Step) -> None:  # type: ignore[override]
            pass

    Trainer(TinyTokens(), [digit_sum], ["1", "2"], observers={"silent": Silent()}, **SIZES).step()
