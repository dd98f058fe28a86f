"""The checks that every observer passes: it follows a toy training of a few steps, which must not notice it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from grpokit.errors import GrpokitError, UsageError, brief
from grpokit.guards.observer import Observer
from grpokit.training.state import Stateful
from grpokit_check.check import Check, NotChecked, checks_of, expect, expect_untouched, random_states
from grpokit_check.states import expect_saveable, restored, same_state, state_of
from grpokit_check.toy_training import toy_trainer

_STEPS = 4


def observer_checks(factory: Callable[[], Observer], *, module: str | None = None) -> Iterator[Check]:
    """Yield the checks of an observer. Nothing is built before a check runs.

    Args:
        factory: makes a new observer; its class will do.
        module: the plugin's module behind the entry point, which must import nothing heavy.
    """
    yield from checks_of(_CHECKS, factory, module)


class _Recorder(Observer):
    """Passes a training's moments on to an observer, and keeps what it answers."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.answers: list[Any] = []

    def scored(self, step: Any) -> Any:
        return self._pass("scored", step)

    def weighted(self, step: Any) -> Any:
        return self._pass("weighted", step)

    def differentiated(self, step: Any) -> Any:
        return self._pass("differentiated", step)

    def updated(self, step: Any) -> Any:
        return self._pass("updated", step)

    def _pass(self, moment: str, step: Any) -> Any:
        answer = getattr(self.observer, moment)(step)
        self.answers.append(answer if isinstance(answer, str) else list(answer or ()))
        return self.answers[-1]


def _train(*observers: Observer) -> list[Tensor]:
    """The totals and advantages of some steps, and the weights at their end.

    Raises:
        NotChecked: an observer stopped the training, as it may.
    """
    trainer = toy_trainer(observers={f"observer-{number}": each for number, each in enumerate(observers)})
    numbers = []
    for _ in range(_STEPS):
        try:
            report = trainer.step()
        except UsageError:
            raise
        except GrpokitError as stop:
            raise NotChecked(f"it stopped the toy training: {stop}") from stop
        numbers += [report.totals, report.advantages]
    return [*numbers, *(x.detach().clone() for x in trainer.policy.modules()["table"].parameters())]


def protocol(factory: Callable[[], Observer]) -> None:
    """It is a `grpokit.Observer`, and a state that it has can be saved, before a training and after it."""
    observer = factory()
    expect(isinstance(observer, Observer), "an object of a subclass of grpokit.Observer", brief(observer),
           "a class instead of an object, or a class without this base class")  # fmt: skip
    expect_saveable(observer)
    _train(observer)
    expect_saveable(observer)


def answers(factory: Callable[[], Observer]) -> None:
    """Each method returns warnings, a list of texts."""
    recorder = _Recorder(factory())
    _train(recorder)
    for answer in recorder.answers:
        right = not isinstance(answer, str) and all(isinstance(line, str) for line in answer)
        expect(right, "a list of texts, or nothing", brief(answer), "a text without a list around it")


def unnoticed(factory: Callable[[], Observer]) -> None:
    """A training has the same totals, advantages and weights, bit for bit, with and without it."""
    same = all(map(torch.equal, _train(), _train(factory())))
    expect(same, "the same training with and without it", "other totals, advantages or weights",
           "a change of the step in place, such as step.advantages.mul_(2); an observer changes nothing")  # fmt: skip


def global_rng(factory: Callable[[], Observer]) -> None:
    """Global random states are left alone."""
    before = random_states()
    _train(factory())
    expect_untouched(before, "an observer")


def independent(factory: Callable[[], Observer]) -> None:
    """Two observers share no state: each phase and each process has its own."""
    fresh, observer = factory(), factory()
    before = state_of(fresh)
    _train(observer)
    alone = fresh is not observer and same_state(state_of(fresh), before)
    expect(alone, "an observer that another one does not change", "a change of its state",
           "state in the class or the module; make a new observer in the hook")  # fmt: skip


def state(factory: Callable[[], Observer]) -> None:
    """A restored observer goes on as the one that was saved; without a state, a new one does."""
    saved = factory()
    _train(saved)
    own = saved.state_dict() if isinstance(saved, Stateful) else {}
    kept = state_of(saved)
    first, second = _Recorder(saved), _Recorder(restored(factory(), kept))
    expect(same_state(state_of(second.observer), kept), "the state that was loaded", brief(state_of(second.observer)),
           "a load_state_dict that leaves something out")  # fmt: skip
    _train(first, second)
    expect(same_state(own, kept), "a state_dict that later steps do not change", brief(own),
           "a list or a tensor that is not copied: a step that fails could not be undone")  # fmt: skip
    same = same_state(state_of(first.observer), state_of(second.observer)) and first.answers == second.answers
    expect(same, "a restored observer that goes on as the saved one", "other warnings, or another state later",
           "something that it counts but state_dict leaves out")  # fmt: skip


_CHECKS: Sequence[Callable[[Callable[[], Observer]], None]] = (
    protocol,
    answers,
    unnoticed,
    global_rng,
    independent,
    state,
)
