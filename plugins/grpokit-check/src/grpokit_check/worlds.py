"""The checks that every world passes, which a language model talks to.

Conversations are played without a model: what it would write are fixed texts.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from grpokit.errors import UsageError, a_type, brief
from grpokit.types import Prompt
from grpokit_check.check import (
    Check,
    NotChecked,
    checks_of,
    expect,
    expect_untouched,
    random_states,
)
from grpokit_check.reward.unusual_outputs import TEXTS

_PROMPTS = (Prompt(text="What is 5 + 7?", target="12"), Prompt(text="Say a number.", target="3"))
_TURNS = ("5", "no", "12", "I do not know.", "3 * (4 + 5)", "yes", "1", "9")
_MOST_TURNS = 64


def world_checks(
    factory: Callable[[], Any], prompts: Iterable[str | Prompt] = _PROMPTS, *, module: str | None = None
) -> Iterator[Check]:
    """Yield the checks of a world. Nothing is built before a check runs.

    Args:
        factory: makes a new world for an episode; its class will do.
        prompts: that it can start with; by default two short ones with a target.
        module: the plugin's module behind the entry point, which must import nothing heavy.

    Raises:
        UsageError: no prompt.
    """
    case = _Case(factory=factory, prompts=[Prompt(text=p) if isinstance(p, str) else p for p in prompts])
    if not case.prompts:
        raise UsageError("The checks of a world need a prompt.")
    yield from checks_of(_CHECKS, case, module)


@dataclass(frozen=True, kw_only=True)
class _Episode:
    """What a world said: its first message, its replies (None where it ended the episode), and its facts."""

    first: Any
    replies: Sequence[Any]
    facts: Any


@dataclass(frozen=True, kw_only=True)
class _Case:
    """How to make a world, and what it starts with."""

    factory: Callable[[], Any]
    prompts: Sequence[Prompt]

    def episode(
        self, prompt: Prompt, seed: int, *, turns: int = len(_TURNS), after_start: Callable[[], None] = lambda: None
    ) -> _Episode:
        """Play an episode of so many turns, unless the world ends it before."""
        world = self.factory()
        first, replies = world.start(copy.deepcopy(prompt), seed), []
        after_start()
        for turn in range(turns):
            replies.append(copy.deepcopy(world.reply(_TURNS[turn % len(_TURNS)])))
            if replies[-1] is None:
                break
        facts = copy.deepcopy(world.facts()) if hasattr(world, "facts") else {}
        _close(world)
        return _Episode(first=first, replies=replies, facts=facts)


def _close(world: Any) -> None:
    if hasattr(world, "close"):
        world.close()


def protocol(case: _Case) -> None:
    """A world has `start` and `reply`, and what else it has is of the right form."""
    world = case.factory()
    lacking = [name for name in ("start", "reply") if not callable(getattr(world, name, None))]
    expect(not lacking, "the methods start and reply", f"none called {' and '.join(lacking)}", "a misspelt method")
    wrong = [name for name in ("facts", "close") if hasattr(world, name) and not callable(getattr(world, name))]
    expect(not wrong, "facts and close as methods", f"something else called {' and '.join(wrong)}",
           "an attribute of the same name; give it another one")  # fmt: skip
    tools = getattr(world, "tools", [])
    right = isinstance(tools, Sequence) and all(isinstance(tool, Mapping) for tool in tools)
    expect(right, "tools as a list of JSON schemas", brief(tools), "a method called tools; make it an attribute")


def messages(case: _Case) -> None:
    """What a world says is a text, a message of a chat template, a list of such, or None."""
    for prompt in case.prompts:
        episode = case.episode(prompt, 1)
        for turn, message in enumerate([episode.first, *episode.replies]):
            where = f"in reply {turn}" if turn else "in start"
            expect(_is_message(message), "a text, a mapping with 'role' and 'content', a list of these, or None",
                   f"{brief(message)} {where}", "a number, or a message without a role")  # fmt: skip


def _is_message(message: Any) -> bool:
    if message is None or isinstance(message, str):
        return True
    parts = [message] if isinstance(message, Mapping) else message
    if not isinstance(parts, Sequence) or not parts:
        return False
    return all(isinstance(part, Mapping) and {"role", "content"} <= part.keys() for part in parts)


def seeded(case: _Case) -> None:
    """The same prompt, seed and turns give the same episode, whatever the global random states are."""
    for prompt in case.prompts:
        episodes = []
        for state in (1, 2, 3):
            torch.manual_seed(state)
            np.random.seed(state)
            random.seed(state)
            episodes.append(case.episode(prompt, 7))
        first, *others = episodes
        same = all(other == first for other in others)
        expect(same, "the same episode with the same seed", _difference(first, others),
               "random numbers that do not come from the seed of start; use random.Random(seed)")  # fmt: skip


def _difference(first: _Episode, others: Sequence[_Episode]) -> str:
    other = next((episode for episode in others if episode != first), first)
    part = next((name for name, value in vars(first).items() if getattr(other, name) != value), "first")
    return f"{brief(getattr(first, part))} and {brief(getattr(other, part))}"


def independent(case: _Case) -> None:
    """Worlds share nothing: an episode is the same alone and beside another one."""
    alone = case.episode(case.prompts[0], 3)
    beside = case.episode(case.prompts[0], 3, after_start=lambda: _begin(case))
    expect(beside == alone, "an episode that other worlds do not change", _difference(alone, [beside]),
           "state in the class or the module; set it in start or __init__")  # fmt: skip


def _begin(case: _Case) -> None:
    """Another world, with one turn."""
    other = case.factory()
    other.start(copy.deepcopy(case.prompts[-1]), 4)
    other.reply(_TURNS[3])
    _close(other)


def global_rng(case: _Case) -> None:
    """Global random states are left alone."""
    before = random_states()
    for prompt in case.prompts:
        case.episode(prompt, 5)
    expect_untouched(before, "a world")


def prompt_unchanged(case: _Case) -> None:
    """A prompt stays as it is: all episodes of its group start with it."""
    for prompt in case.prompts:
        own, world = copy.deepcopy(prompt), case.factory()
        world.start(own, 2)
        world.reply(_TURNS[0])
        _close(world)
        expect(own == prompt, "a prompt that stays as it is", brief(own), "a change of prompt.meta in place")


def facts(case: _Case) -> None:
    """Facts can be read however an episode ends: after the start, in the middle, and at its end."""
    for turns in (0, 1, len(_TURNS)):
        read = case.episode(case.prompts[0], 6, turns=turns).facts
        expect(isinstance(read, Mapping), "a mapping of facts", a_type(read), "facts without a return")
        value = read.get("return", 0.0)
        number = isinstance(value, (int, float)) and abs(value) < float("inf")
        expect(number, "a finite number as the fact 'return'", f"{brief(value)} after {turns} turns",
               "a tensor, or a value that is set at the end only: a limit may end an episode early")  # fmt: skip


def unusual_texts(case: _Case) -> None:
    """Whatever a model writes gets a reply: an error in `reply` stops the run."""
    for title, text in TEXTS.items():
        world = case.factory()
        world.start(copy.deepcopy(case.prompts[0]), 1)
        try:
            reply = world.reply(text)
        except Exception as error:  # a world may raise anything
            reply = error
        expect(_is_message(reply), f"a reply to {title}", f"{brief(reply)}", "a text that is parsed without a check")
        _close(world)


def ends(case: _Case) -> None:
    """A world ends its episodes itself."""
    for prompt in case.prompts:
        if case.episode(prompt, 8, turns=_MOST_TURNS).replies[-1] is not None:
            raise NotChecked(f"it did not end within {_MOST_TURNS} turns, so max_turns has to end its episodes")


def closing(case: _Case) -> None:
    """`close` can be called right after the start, as where the first message is looked at."""
    world = case.factory()
    if not hasattr(world, "close"):
        raise NotChecked("it has no close")
    world.start(copy.deepcopy(case.prompts[0]), 9)
    world.close()


_CHECKS: Sequence[Callable[[_Case], None]] = (
    protocol,
    messages,
    seeded,
    independent,
    global_rng,
    prompt_unchanged,
    facts,
    unusual_texts,
    ends,
    closing,
)
