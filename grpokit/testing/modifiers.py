"""The checks that every modifier passes: it takes part in a toy training of a few steps, with a KL and a monitor."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpokit.errors import RunError, shown
from grpokit.guards.observer import Observer
from grpokit.objectives import GRPO, Objective
from grpokit.rewards.terms import RewardTerm
from grpokit.testing.check import Check, checks_of, expect, expect_unchanged, expect_untouched, random_states
from grpokit.testing.states import expect_saveable, same_state, state_of
from grpokit.testing.toy_training import ones, toy_trainer
from grpokit.trainer import Trainer
from grpokit.training.batch import Batch, Signal
from grpokit.training.metrics import Tally
from grpokit.training.modifier import Modifier, TrainerSetup
from grpokit.training.step import Step
from grpokit.types import Sample

_STEPS = 4


def modifier_checks(factory: Callable[[], Modifier], *, module: str | None = None) -> Iterator[Check]:
    """Yield the checks of a modifier. Each check builds its own.

    Args:
        factory: makes a new modifier; its class will do.
        module: the plugin's module behind the entry point, which must import nothing heavy.
    """
    yield from checks_of(_CHECKS, factory, module)


def _twos(samples: Sequence[Sample]) -> list[float]:
    """A monitor that does not rise with the reward."""
    return [sample.output.count("2") + 0.1 * len(sample.output) for sample in samples]


def _trainer(modifier: Modifier, **settings: Any) -> Trainer:
    monitors = modifier.monitors or ("monitor",)
    rewards = [RewardTerm(name="ones", reward=ones), *(RewardTerm(name=m, reward=_twos, weight=0.0) for m in monitors)]
    objective = GRPO(kl_coef=0.1, entropy_coef=0.01)
    return toy_trainer(rewards, modifiers=[modifier], objective=objective, seed=5, **settings)


def _train(trainer: Trainer, steps: int = _STEPS) -> list[Tensor]:
    """The weights after each of some steps."""
    weights = []
    for _ in range(steps):
        trainer.step()
        weights += [x.detach().clone() for x in trainer.policy.modules()["table"].parameters()]
    return weights


def protocol(factory: Callable[[], Modifier]) -> None:
    """It is a `grpokit.Modifier`, and a state that it has can be saved, before a training and after it."""
    modifier = factory()
    expect(isinstance(modifier, Modifier), "an object of a subclass of grpokit.Modifier", shown(modifier),
           "a class instead of an object, or a class without this base class")  # fmt: skip
    expect_saveable(modifier)
    _train(_trainer(modifier))
    expect_saveable(modifier)


def deterministic(factory: Callable[[], Modifier]) -> None:
    """The same run gives the same weights, bit for bit, whatever the global random states are."""
    runs = []
    for state in (1, 2):
        torch.manual_seed(state)
        before = random_states()
        runs.append(_train(_trainer(factory())))
        expect_untouched(before, "a modifier")
    expect(all(map(torch.equal, *runs)), "the same weights in a second run", "other ones",
           "random numbers that do not follow from setup.seed, step.number and the row")  # fmt: skip


def state(factory: Callable[[], Modifier]) -> None:
    """A resumed run is the same, bit for bit, as one that was not interrupted."""
    whole = _train(_trainer(factory()))
    first, second = _trainer(factory()), _trainer(factory())
    _train(first, 2)
    with tempfile.TemporaryDirectory() as folder:
        first.save(folder)
        second.load(folder)
    same = same_state(state_of(second.modifiers[0]), state_of(first.modifiers[0]))
    expect(same, "the state that was saved", shown(state_of(second.modifiers[0])),
           "a load_state_dict that leaves something out")  # fmt: skip
    rest = _train(second, _STEPS - 2)
    expect(torch.equal(rest[-1], whole[-1]), "the weights of a run without an interruption", "other ones",
           "something that it remembers but state_dict leaves out")  # fmt: skip


class _Stop(Observer):
    """Stops a step behind its last update."""

    def updated(self, step: Step) -> Any:
        if step.number == 2 and step.update == 4:
            raise RunError("Stopped by the check.")
        return ()


def undone(factory: Callable[[], Modifier]) -> None:
    """A step that fails leaves its state as it was before."""
    modifier = factory()
    trainer = _trainer(modifier, observers={"stop": _Stop()})
    _train(trainer, 1)
    before = state_of(modifier)
    with suppress(RunError):
        trainer.step()
    expect(same_state(state_of(modifier), before), "the state before the step that failed", shown(state_of(modifier)),
           "a list or a tensor in state_dict that is not copied")  # fmt: skip


def micro_batches(factory: Callable[[], Modifier]) -> None:
    """The size of a micro-batch changes nothing but rounding."""
    whole, cut = (_train(_trainer(factory(), micro_batch_size=size)) for size in (16, 3))
    difference = max(float((a - b).abs().max()) for a, b in zip(whole, cut, strict=True))
    expect(difference < 1e-9, "the same weights in smaller micro-batches", f"a difference of {difference:.2g}",
           "a state that each call of the objective changes")  # fmt: skip


class _Around(Modifier):
    """Has a modifier do all that it does."""

    def __init__(self, modifier: Modifier) -> None:
        self.modifier, self.monitors = modifier, modifier.monitors
        self.needs_entropy, self.needs_reference = modifier.needs_entropy, modifier.needs_reference

    def begin(self, setup: TrainerSetup) -> None:
        self.modifier.begin(setup)

    def rows(self, signal: Signal, step: Step) -> Signal:
        return self.modifier.rows(signal, step)

    def minibatch(self, batch: Batch) -> Batch:
        return self.modifier.minibatch(batch)

    def objective(self, objective: Objective) -> Objective:
        return self.modifier.objective(objective)

    def updated(self, tally: Tally) -> None:
        self.modifier.updated(tally)


class _Watched(_Around):
    """Fails where a modifier changes what it is given."""

    def rows(self, signal: Signal, step: Step) -> Signal:
        scores = {"scores.matrix": step.scores.matrix, "scores.totals": step.scores.totals}
        with expect_unchanged({**vars(signal), **scores, "decisions": step.decisions}, "signal.advantages *= 2"):
            return super().rows(signal, step)

    def minibatch(self, batch: Batch) -> Batch:
        own = {name: x for name, x in vars(batch).items() if isinstance(x, Tensor)}
        with expect_unchanged(own, "batch.advantages *= 2"):
            return super().minibatch(batch)


def unchanged(factory: Callable[[], Modifier]) -> None:
    """It changes copies, and leaves what it is given as it is."""
    _train(_trainer(_Watched(factory())), 2)


class _OfOneProcess(_Around):
    """Asks a modifier what it would decide in a process that has a part of the rows."""

    def rows(self, signal: Signal, step: Step) -> Signal:
        groups = step.drawn.rows.groups.unique()
        other, modifier = copy.copy(step), copy.deepcopy(self.modifier)
        own = (step.drawn.rows.groups == groups[0]).nonzero()[:, 0]
        rows = replace(step.drawn.rows, share=slice(0, len(own)))
        other.drawn = replace(step.drawn, rollout=step.rollout.select(own), rows=rows)
        answers = [one.rows(signal, seen) for one, seen in ((modifier, other), (self.modifier, step))]
        for name, value in vars(answers[1]).items():
            same = torch.equal(getattr(answers[0], name), value)
            expect(same, f"the same {name} in each process, for the rows of all",
                   "other ones in a process that has only some of the rows",
                   "reading step.rollout, which has only this process's rows; read step.scores and signal")  # fmt: skip
        same = same_state(state_of(modifier), state_of(self.modifier))
        expect(same, "the same state in each process", "another one in a process that has only some of the rows",
               "a state that comes from step.rollout")  # fmt: skip
        return answers[1]


def processes(factory: Callable[[], Modifier]) -> None:
    """All processes decide alike: nothing is decided from the rows of one process alone."""
    _train(_trainer(_OfOneProcess(factory())), 2)


_CHECKS: Sequence[Callable[[Callable[[], Modifier]], None]] = (
    protocol,
    deterministic,
    state,
    undone,
    micro_batches,
    unchanged,
    processes,
)
