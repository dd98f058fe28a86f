"""The checks of worlds: right ones pass, and each mistake is caught by its check."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from grpokit import PluginError, UsageError, registry
from grpokit_check import outcomes, world_checks


def failed(checks: Any) -> dict[str, str]:
    return {o.name: o.message for o in outcomes(checks) if o.failed}


def is_ready(world: str) -> bool:
    """Whether it can do without parameters."""
    try:
        registry.parameters("world", world, {})
    except PluginError:
        return False
    return True


READY = [spec.name for _, spec in registry.installed("world") if is_ready(spec.name)]


@pytest.mark.parametrize("name", READY)
def test_worlds_of_our_plugins(name: str) -> None:
    assert not failed(world_checks(lambda: registry.create("world", name)))


class Quiz:
    """A right one: it asks for the target, three times at most."""

    def start(self, prompt: Any, seed: int) -> str:
        self.target, self.left = prompt.target, 2 + seed % 2
        return f"{prompt.text} You may try {self.left} times."

    def reply(self, text: str) -> Any:
        self.left -= 1
        self.right = self.target in text
        return {"role": "tool", "content": "no"} if self.left and not self.right else None

    def facts(self) -> dict[str, float]:
        return {"return": float(getattr(self, "right", False))}

    def close(self) -> None:
        self.target = None


class NoReply(Quiz):
    reply = None  # type: ignore[assignment]


class SaysANumber(Quiz):
    def start(self, prompt: Any, seed: int) -> Any:
        super().start(prompt, seed)
        return seed


class IgnoresItsSeed(Quiz):
    def start(self, prompt: Any, seed: int) -> str:
        return f"{super().start(prompt, seed)} {random.SystemRandom().random()}"


class DrawsGlobally(Quiz):
    def start(self, prompt: Any, seed: int) -> str:
        return f"{super().start(prompt, seed)} {random.random()}"


class SeedsGlobally(Quiz):
    def start(self, prompt: Any, seed: int) -> str:
        random.seed(seed)
        return f"{super().start(prompt, seed)} {random.random()}"


class SharesItsHistory(Quiz):
    history: list[str]

    def start(self, prompt: Any, seed: int) -> str:
        type(self).history = []
        return super().start(prompt, seed)

    def reply(self, text: str) -> Any:
        self.history.append(text)
        answer = super().reply(text)
        return answer and f"After {self.history}: no"


class MarksThePrompt(Quiz):
    def start(self, prompt: Any, seed: int) -> str:
        prompt.meta["seen"] = True
        return super().start(prompt, seed)


class FactsAtTheEndOnly(Quiz):
    def facts(self) -> dict[str, Any]:
        return {"return": float("nan") if self.left else 1.0}


class ParsesBelieving(Quiz):
    def reply(self, text: str) -> Any:
        text.split()[0]
        return super().reply(text)


class ClosesAtTheEndOnly(Quiz):
    def close(self) -> None:
        del self.right


BROKEN: list[tuple[Callable[[], Any], set[str]]] = [
    (IgnoresItsSeed, {"seeded", "independent"}),
    (DrawsGlobally, {"seeded", "global-rng", "independent"}),
    (SeedsGlobally, {"global-rng"}),
    (SharesItsHistory, {"independent"}),
    (MarksThePrompt, {"prompt-unchanged"}),
    (FactsAtTheEndOnly, {"facts"}),
    (ParsesBelieving, {"unusual-texts"}),
    (SaysANumber, {"messages"}),
]


def test_a_right_world() -> None:
    found = list(outcomes(world_checks(Quiz)))
    assert all(outcome.ok for outcome in found), found


@pytest.mark.parametrize(("factory", "caught"), BROKEN)
def test_what_is_wrong_is_caught(factory: Callable[[], Any], caught: set[str]) -> None:
    found = failed(world_checks(factory))
    assert set(found) == caught, found
    assert all(re.match(r"Expected .*; got .*\. Usual cause: .*\.$", m, re.DOTALL) for m in found.values()), found


def test_what_is_missing_is_named() -> None:
    assert "got none called reply" in failed(world_checks(NoReply))["protocol"]
    assert "'right'" in failed(world_checks(ClosesAtTheEndOnly))["closing"]


def test_an_episode_without_an_end_is_not_checked_for_one() -> None:
    def guessing(**params: int) -> Callable[[], Any]:
        return lambda: registry.create("world", "guess-the-number", params)

    found = {o.name: o for o in outcomes(world_checks(guessing(guesses=1000, high=2)))}
    assert found["ends"].ok  # a number was right
    found = {o.name: o for o in outcomes(world_checks(guessing(guesses=1000, low=50, high=60)))}
    assert found["ends"].message == "it did not end within 64 turns, so max_turns has to end its episodes"
    with pytest.raises(UsageError, match="need a prompt"):
        next(world_checks(Quiz, []))
