"""The checks of observers: a right one passes, and each mistake is caught by its check."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

from grpokit import Observer, RunError
from grpokit_check import observer_checks, outcomes


def failed(checks: Any) -> dict[str, str]:
    return {o.name: o.message for o in outcomes(checks) if o.failed}


class Counter(Observer):
    """A right one: it remembers rewards, and warns of every third step."""

    def __init__(self) -> None:
        self.rewards: list[float] = []

    def scored(self, step: Any) -> list[str]:
        self.rewards.append(float(step.scores.totals.nanmean()))
        return [f"three more: {self.rewards[-1]}"] if len(self.rewards) % 3 == 0 else []

    def state_dict(self) -> Any:
        return {"rewards": list(self.rewards)}

    def load_state_dict(self, state: Any) -> None:
        self.rewards = list(state["rewards"])


class Forgets(Counter):
    """A state that is not restored."""

    def load_state_dict(self, state: Any) -> None:
        pass


class KeepsNothing(Counter):
    """Counts, and a resumed run begins again."""

    state_dict = load_state_dict = None  # type: ignore[assignment]


class SavesHalf(Counter):
    """A threshold that rises is not in the state."""

    warned = 0

    def scored(self, step: Any) -> list[str]:
        super().scored(step)
        self.warned += 1
        return ["odd"] if self.warned % 3 == 0 else []


class HandsOutItsList(Counter):
    def state_dict(self) -> Any:
        return {"rewards": self.rewards}


class SavesASet(Counter):
    def state_dict(self) -> Any:
        return {"rewards": tuple(self.rewards)}


class DoublesAdvantages(Counter):
    def weighted(self, step: Any) -> list[str]:
        step.advantages.mul_(2)
        return []


class DrawsGlobally(Counter):
    def updated(self, step: Any) -> list[str]:
        torch.rand(1)
        return []


class SharesItsList(Counter):
    shared: ClassVar[list[float]] = []

    def __init__(self) -> None:
        self.rewards = self.shared


class AnswersAText(Counter):
    def scored(self, step: Any) -> Any:
        return "a warning"


class Stops(Observer):
    def scored(self, step: Any) -> Any:
        raise RunError("Enough.")


BROKEN: list[tuple[Callable[[], Any], set[str]]] = [
    (Forgets, {"state"}),
    (KeepsNothing, {"state"}),
    (SavesHalf, {"state"}),
    (HandsOutItsList, {"state"}),
    (SavesASet, {"protocol"}),
    (DoublesAdvantages, {"unnoticed"}),
    (DrawsGlobally, {"global-rng"}),
    (SharesItsList, {"independent"}),
    (AnswersAText, {"answers"}),
]


def test_a_right_observer_and_one_that_stops() -> None:
    assert all(outcome.ok for outcome in outcomes(observer_checks(Counter)))
    found = {o.name: o for o in outcomes(observer_checks(Stops))}
    assert found["unnoticed"].message == "it stopped the toy training: Enough."
    assert not any(outcome.failed for outcome in found.values())


@pytest.mark.parametrize(("factory", "caught"), BROKEN)
def test_what_is_wrong_is_caught(factory: Callable[[], Any], caught: set[str]) -> None:
    found = failed(observer_checks(factory))
    assert set(found) == caught, found
    assert all(re.match(r"Expected .*; got .*\. Usual cause: .*\.$", m, re.DOTALL) for m in found.values()), found


def test_what_is_no_observer() -> None:
    assert "subclass of grpokit.Observer" in failed(observer_checks(dict))["protocol"]  # type: ignore[arg-type]
