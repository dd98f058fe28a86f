"""The checks of modifiers: right ones pass, and each mistake is caught by its check."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from grpokit import Batch, Modifier, Objective, Signal, Step, TrainerSetup, UsageError, registry
from grpokit_check import modifier_checks, outcomes

NEEDED: dict[str, dict[str, Any]] = {"diversity": {"monitor": "variety"}, "entropy-target": {"target": 0.5}}


def failed(checks: Any) -> dict[str, str]:
    return {o.name: o.message for o in outcomes(checks) if o.failed}


@pytest.mark.slow
@pytest.mark.parametrize("name", [spec.name for _, spec in registry.installed("modifier")])
def test_built_in_modifiers(name: str) -> None:
    assert not failed(modifier_checks(lambda: registry.create("modifier", name, NEEDED.get(name, {}))))


class Fading(Modifier):
    """A right one: advantages of each later step count less, and the more so the better the last one was."""

    def __init__(self) -> None:
        self.past: list[float] = []

    def rows(self, signal: Signal, step: Step) -> Signal:
        factor = 1 / (1 + sum(self.past))
        self.past.append(float(step.scores.totals.nanmean()))
        return replace(signal, advantages=signal.advantages * factor)

    def state_dict(self) -> Any:
        return {"past": list(self.past)}

    def load_state_dict(self, state: Any) -> None:
        self.past = list(state["past"])


class Forgets(Fading):
    def load_state_dict(self, state: Any) -> None:
        pass


class KeepsNothing(Fading):
    state_dict = load_state_dict = None  # type: ignore[assignment]


class HandsOutItsList(Fading):
    def state_dict(self) -> Any:
        return {"past": self.past}


class DrawsGlobally(Fading):
    def rows(self, signal: Signal, step: Step) -> Signal:
        return replace(super().rows(signal, step), weights=torch.rand(len(signal.weights)).double())


class ReadsItsOwnRows(Fading):
    """Decides by the longest row of this process."""

    def rows(self, signal: Signal, step: Step) -> Signal:
        changed = super().rows(signal, step)
        return replace(changed, advantages=changed.advantages / step.rollout.rows)


class CountsItsOwnRows(Fading):
    def rows(self, signal: Signal, step: Step) -> Signal:
        self.past.append(step.rollout.rows / 100)
        return signal


class AveragesItsOwnRows(Fading):
    def minibatch(self, batch: Batch) -> Batch:
        return replace(batch, advantages=batch.advantages / (1 + batch.advantages.abs().mean()))


class AveragesAllRows(Modifier):
    """A right one."""

    def begin(self, setup: TrainerSetup) -> None:
        self.team = setup.team

    def minibatch(self, batch: Batch) -> Batch:
        sizes = self.team.gather(batch.advantages.abs())
        return replace(batch, advantages=batch.advantages / (1 + torch.cat(sizes).mean()))


class RemembersItsOwnRows(Fading):
    def minibatch(self, batch: Batch) -> Batch:
        self.past.append(len(batch.numbers) / 100)
        return batch


class WeighsByItsOwnRows(Fading):
    def minibatch(self, batch: Batch) -> Batch:
        self.count = len(batch.numbers)
        return batch

    def objective(self, objective: Objective) -> Objective:
        return replace(objective, kl_coef=0.01 * self.count)


class ActsLate(Fading):
    """It forgets how many steps it has seen, and acts behind the last one of the checks."""

    steps = 0

    def rows(self, signal: Signal, step: Step) -> Signal:
        self.steps += 1
        return replace(signal, advantages=0.0 * signal.advantages) if self.steps > 10 else signal


class BeginsLate(Modifier):
    """A right one, whose state is there once it has begun."""

    def begin(self, setup: TrainerSetup) -> None:
        self.count = 0

    def state_dict(self) -> Any:
        return {"count": self.count}

    def load_state_dict(self, state: Any) -> None:
        self.count = state["count"]


class ChangesTheScores(Fading):
    def rows(self, signal: Signal, step: Step) -> Signal:
        score = step.scores.column("ones")
        score -= score.max()
        return super().rows(signal, step)


class ChangesTheBatch(Fading):
    """A second round over the same rows finds what the first one left."""

    def minibatch(self, batch: Batch) -> Batch:
        batch.advantages.mul_(0.5)
        return batch


class SharesItsPast(Fading):
    """Its class has the state: a second run is another one."""

    past: list[float] = []  # noqa: RUF012

    def __init__(self) -> None:
        pass


BROKEN: list[tuple[Callable[[], Any], set[str]]] = [
    (Forgets, {"state", "undone"}),
    (KeepsNothing, {"state"}),
    (HandsOutItsList, {"undone"}),
    (DrawsGlobally, {"deterministic", "state", "micro-batches", "processes"}),
    (ReadsItsOwnRows, {"processes"}),
    (CountsItsOwnRows, {"processes"}),
    (AveragesItsOwnRows, {"processes"}),
    (RemembersItsOwnRows, {"processes"}),
    (WeighsByItsOwnRows, {"processes"}),
    (ActsLate, {"state"}),
    (ChangesTheScores, {"unchanged"}),
    (ChangesTheBatch, {"unchanged"}),
    (SharesItsPast, {"deterministic", "state", "micro-batches", "processes"}),
]


@pytest.mark.parametrize("factory", [Fading, AveragesAllRows, BeginsLate])
def test_a_right_modifier(factory: Callable[[], Modifier]) -> None:
    assert all(outcome.ok for outcome in outcomes(modifier_checks(factory)))


@pytest.mark.parametrize(("factory", "caught"), BROKEN)
def test_what_is_wrong_is_caught(factory: Callable[[], Any], caught: set[str]) -> None:
    found = failed(modifier_checks(factory))
    assert set(found) == caught, found
    assert all(re.match(r"Expected .*; got .*\. Usual cause: .*\.$", m, re.DOTALL) for m in found.values()), found


def test_what_is_no_modifier() -> None:
    with pytest.raises(UsageError, match=r"subclass of grpokit\.Modifier"):
        list(modifier_checks(dict))  # type: ignore[arg-type]
