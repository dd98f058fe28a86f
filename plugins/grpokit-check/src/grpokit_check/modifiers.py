"""The checks that every modifier passes: it takes part in a toy training of a few steps, with a KL and a monitor."""

from __future__ import annotations

import copy
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from grpokit.doctor.toy import ones
from grpokit.errors import RunError, UsageError, brief
from grpokit.guards.observer import Observer
from grpokit.objectives import GRPO, Objective
from grpokit.processes.team import Team
from grpokit.rewards.terms import RewardTerm
from grpokit.trainer import Trainer
from grpokit.training.metrics import Tally
from grpokit.training.minibatches import Batch, Signal
from grpokit.training.modifier import Modifier, TrainerSetup
from grpokit.training.step import LearningStep, Step
from grpokit.types import Sample
from grpokit_check.check import Check, checks_of, expect, expect_unchanged, expect_untouched, random_states
from grpokit_check.states import expect_saveable, same_state, state_of
from grpokit_check.toy_training import toy_trainer

T = TypeVar("T")

_STEPS = 4
_FIRST = 4  # rows of the first process: one of the groups
_PLAIN = (bool, int, float, str, list, dict, Tensor)  # attributes that can be compared


def modifier_checks(factory: Callable[[], Modifier], *, module: str | None = None) -> Iterator[Check]:
    """Yield the checks of a modifier. Each check builds its own.

    Args:
        factory: makes a new modifier; its class will do.
        module: the plugin's module behind the entry point, which must import nothing heavy.

    Raises:
        UsageError: what it makes is no modifier.
    """
    modifier = factory()
    if not isinstance(modifier, Modifier):
        raise UsageError(
            f"The checks of a modifier need an object of a subclass of grpokit.Modifier, got {brief(modifier)}."
        )
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
    """It takes part in a training, and a state that it has can be saved before and after."""
    modifier = factory()
    trainer = _trainer(modifier)
    expect_saveable(modifier)
    _train(trainer)
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
    uninterrupted = _trainer(factory())
    whole = _train(uninterrupted)
    first, second = _trainer(factory()), _trainer(factory())
    _train(first, 2)
    with tempfile.TemporaryDirectory() as folder:
        first.save(folder)
        second.load(folder)
    same = same_state(state_of(second.modifiers[0]), state_of(first.modifiers[0]))
    expect(same, "the state that was saved", brief(state_of(second.modifiers[0])),
           "a load_state_dict that leaves something out")  # fmt: skip
    rest = _train(second, _STEPS - 2)
    expect(torch.equal(rest[-1], whole[-1]), "the weights of a run without an interruption", "other ones",
           "something that it remembers but state_dict leaves out")  # fmt: skip
    ended, resumed = vars(uninterrupted.modifiers[0]), vars(second.modifiers[0])
    for name in ended.keys() & resumed.keys():
        if isinstance(ended[name], _PLAIN):
            expect(same_state({name: resumed[name]}, {name: ended[name]}),
                   f"the '{name}' of a run without an interruption, {brief(ended[name])}", brief(resumed[name]),
                   "something that state_dict leaves out, and that may act in a later step")  # fmt: skip


class _Stop(Observer):
    """Stops a step behind its last update."""

    def updated(self, step: LearningStep) -> Any:
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
    expect(same_state(state_of(modifier), before), "the state before the step that failed", brief(state_of(modifier)),
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


def _wrapped(kind: type[_Around], modifier: Modifier) -> Modifier:
    """A modifier inside another, which messages call by its own name."""
    named: type[_Around] = type(type(modifier).__name__, (kind,), {})
    return named(modifier)


def unchanged(factory: Callable[[], Modifier]) -> None:
    """It changes copies, and leaves what it is given as it is."""
    _train(_trainer(_wrapped(_Watched, factory())), 2)


class _Process(Team):
    """One of two processes, which are threads here."""

    def __init__(self, rank: int, values: list[Any], barrier: threading.Barrier) -> None:
        super().__init__()
        self.rank, self.size = rank, 2
        self._values, self._barrier = values, barrier

    def gather(self, value: T) -> list[T]:
        """As `Team`."""
        self._values[self.rank] = value
        self._barrier.wait()
        answers = list(self._values)
        self._barrier.wait()
        return answers

    def gather_in_first(self, value: T) -> list[T]:
        """As `Team`."""
        answers = self.gather(value)
        return [] if self.rank else answers


class _InTwoProcesses(_Around):
    """Asks a modifier what it would do in each of two processes, of which the first has one group."""

    def __init__(self, modifier: Modifier) -> None:
        super().__init__(modifier)
        self.parts = [copy.deepcopy(modifier) for _ in range(2)]
        self.barrier = threading.Barrier(2, timeout=20)

    def begin(self, setup: TrainerSetup) -> None:
        super().begin(setup)
        values = [None, None]
        teams = [_Process(rank, values, self.barrier) for rank in range(2)]
        self._both(lambda rank: self.parts[rank].begin(replace(setup, team=teams[rank])))

    def rows(self, signal: Signal, step: Step) -> Signal:
        rows = step.draw.all_rows
        steps = [_in_one_process(step, share) for share in (slice(0, _FIRST), slice(_FIRST, len(rows.groups)))]
        signals = copy.deepcopy(signal), copy.deepcopy(signal)
        answers = self._both(lambda rank: self.parts[rank].rows(signals[rank], steps[rank]))
        whole = super().rows(signal, step)
        _expect_same(answers, [whole, whole], "in each process, for the rows of all",
                     "reading step.rollout, which has only this process's rows; read step.scores and signal. Or a "
                     "state outside of the object")  # fmt: skip
        self._expect_one_state("rows")
        return whole

    def minibatch(self, batch: Batch) -> Batch:
        in_first = batch.numbers < _FIRST
        shares = [in_first.nonzero()[:, 0], (~in_first).nonzero()[:, 0]]
        parts = [batch.select(share) for share in shares]
        answers = self._both(lambda rank: self.parts[rank].minibatch(parts[rank]))
        whole = super().minibatch(batch)
        _expect_same(answers, [whole.select(share) for share in shares],
                     "in a minibatch, however its rows are spread over processes",
                     "a mean or a maximum over the batch, which has only this process's rows; gather what it needs "
                     "from all by setup.team.gather, as the modifier entropy-filter does")  # fmt: skip
        self._expect_one_state("minibatch")
        return whole

    def objective(self, objective: Objective) -> Objective:
        answers = self._both(lambda rank: self.parts[rank].objective(objective))
        expect(answers[0] == answers[1], "the same objective in each process", "another one in the second process",
               "coefficients that come from the rows of one process")  # fmt: skip
        return super().objective(objective)

    def updated(self, tally: Tally) -> None:
        super().updated(tally)
        self._both(lambda rank: self.parts[rank].updated(tally))
        self._expect_one_state("updated")

    def _both(self, work: Callable[[int], T]) -> list[T]:
        """What both processes do at the same time."""

        def one(rank: int) -> T:
            try:
                return work(rank)
            except BaseException:
                self.barrier.abort()  # the other one may wait for it
                raise

        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(one, rank) for rank in range(2)]
        errors = [future.exception() for future in futures]
        own = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        for error in filter(None, own or errors):
            raise error
        return [future.result() for future in futures]

    def _expect_one_state(self, method: str) -> None:
        expect(same_state(*map(state_of, self.parts)), "the same state in each process",
               f"another one in the second process after {method}()",
               "a state that comes from the rows of one process")  # fmt: skip


def _in_one_process(step: Step, share: slice) -> Step:
    """The step as a process sees it that has a part of the rows."""
    rollout = step.rollout.select(torch.arange(share.start, share.stop))
    draw = replace(step.draw, rollout=rollout, all_rows=replace(step.draw.all_rows, share=share))
    return replace(step, scores=copy.deepcopy(step.scores), draw=draw)


def _expect_same(answers: Sequence[Signal | Batch], expected: Sequence[Signal | Batch], where: str, cause: str) -> None:
    """Fail where a process's answer is not what a single process says of the same rows."""
    for answer, right in zip(answers, expected, strict=True):
        for name in ("advantages", "weights", "kl_weights"):
            a, b = getattr(answer, name), getattr(right, name)
            same = a.shape == b.shape and torch.allclose(a, b, rtol=1e-9, atol=1e-12)
            expect(same, f"the same {name} {where}", "other ones in a process that has only some of the rows", cause)


def processes(factory: Callable[[], Modifier]) -> None:
    """All processes decide alike: nothing is decided from the rows of one process alone."""
    _train(_trainer(factory()), 2)  # which refuses what is wrong in a single process
    _train(_trainer(_wrapped(_InTwoProcesses, factory())), 2)


_CHECKS: Sequence[Callable[[Callable[[], Modifier]], None]] = (
    protocol,
    deterministic,
    state,
    undone,
    micro_batches,
    unchanged,
    processes,
)
