"""Observers follow a step, and stop it without a trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from grpokit import Observer, RunError, Step, Trainer
from tiny_policies import TinyTokens, digit_sum

SIZES = {"prompts_per_step": 2, "group_size": 4, "minibatches": 2, "updates_per_rollout": 2, "device": "cpu"}


class Diary(Observer):
    """Notes each moment, and stops at one."""

    def __init__(self, stop: tuple[int, str] | None = None) -> None:
        self.stop, self.entries = stop, list[tuple[Any, ...]]()

    def note(self, moment: str, step: Step, *facts: Any) -> list[str]:
        self.entries.append((moment, step.number, step.update, *facts))
        if self.stop == (step.number, moment):
            raise RunError(f"Stopped when {moment}.")
        return [f"{moment} {step.update}"]

    def drawn(self, step: Step) -> list[str]:
        return self.note("drawn", step, step.rollout.rows, tuple(step.scores.totals.shape))

    def scored(self, step: Step) -> list[str]:
        return self.note("scored", step, float(step.advantages.sum()))

    def differentiated(self, step: Step) -> list[str]:
        return self.note("differentiated", step, step.minibatch.rollout.rows, len(step.tallies))

    def updated(self, step: Step) -> list[str]:
        return self.note("updated", step, step.norms[-1] > 0)

    def state_dict(self) -> dict[str, Any]:
        return {"count": len(self.entries)}

    def load_state_dict(self, state: Any) -> None:
        del self.entries[state["count"] :]


def make(diary: Diary) -> Trainer:
    return Trainer(TinyTokens(), [digit_sum], ["1", "2", "3", "4"], observers={"diary": diary}, **SIZES)


def test_an_observer_sees_each_moment_in_its_order() -> None:
    diary = Diary()
    report = make(diary).step()
    (drawn, scored), updates = diary.entries[:2], diary.entries[2:]
    assert drawn == ("drawn", 1, 0, 8, (8,))
    assert scored == ("scored", 1, 0, pytest.approx(0, abs=1e-5))
    assert updates == [
        entry
        for update in (1, 2, 3, 4)
        for entry in (("differentiated", 1, update, 4, update), ("updated", 1, update, True))
    ]
    assert [line for line in report.warnings if line.startswith("updated")] == [f"updated {i}" for i in (1, 2, 3, 4)]


@pytest.mark.parametrize(("moment", "made"), [("drawn", 0), ("scored", 0), ("differentiated", 0), ("updated", 1)])
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
