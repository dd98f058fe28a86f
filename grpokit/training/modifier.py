"""What changes the maths of a step: modifiers, which act one after the other in a stated order.

A modifier sees the rows of all processes and decides from them alone, so that all processes decide alike. Normalisers
are fixed after the last change of rows and before any cutting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from grpokit.errors import UsageError, brief, nearest
from grpokit.objectives import Objective
from grpokit.processes.forks import forks_ended
from grpokit.processes.team import Team
from grpokit.rewards.terms import RewardTerm
from grpokit.settings import problem
from grpokit.training.checks import check_minibatch, check_objective, check_own_metrics, check_signal
from grpokit.training.metrics import Tally
from grpokit.training.minibatches import Batch, Signal
from grpokit.training.state import Stateful, stateful
from grpokit.training.step import Step


@dataclass(frozen=True, kw_only=True)
class TrainerSetup:
    """The trainer that a modifier belongs to.

    Attributes:
        objective: the trainer's, before any modifier changes it.
        rewards: the trained rewards and the monitors.
        seed: a modifier's random draws follow from it, the step's number and the row.
        team: the processes that train together; `team.gather(value)` gives the values of all.
    """

    objective: Objective
    rewards: Sequence[RewardTerm]
    seed: int
    team: Team


class Modifier:
    """Changes what a step learns. The trainer calls its methods in the order below.

    Checkpoints keep a modifier that has `state_dict` and `load_state_dict`, and a failed step restores its state. So
    `state_dict` must return copies of what changes later. All processes must get the same from `rows` and `objective`,
    and must have the same state.

    Attributes:
        needs_entropy: whether `minibatch` reads `batch.entropy`, which may take a pass without gradient.
        needs_reference: whether `minibatch` reads `batch.reference`, although the objective may have no KL.
        monitors: the names of the monitors that `rows` reads from `step.scores`.
    """

    needs_entropy: bool = False
    needs_reference: bool = False
    monitors: Sequence[str] = ()

    def begin(self, setup: TrainerSetup) -> None:
        """Called when the trainer is built. Raise a `UsageError` if it does not suit this modifier."""

    def rows(self, signal: Signal, step: Step) -> Signal:
        """Return what the rows of all processes teach.

        `step` has the `scores` and the number of `decisions` of the same rows, and the `prompts` of their groups. Its
        `rollout` has only this process's rows.
        """
        return signal

    def minibatch(self, batch: Batch) -> Batch:
        """Return this process's rows of the next optimizer step; their weights include the normaliser.

        Change a copy (`dataclasses.replace`): other optimizer steps share the tensors.
        """
        return batch

    def objective(self, objective: Objective) -> Objective:
        """Return the objective of the next optimizer step, such as with other coefficients.

        It must need the same as the trainer's own objective, and have the same reduction: it is too late to add a KL.
        """
        return objective

    def updated(self, tally: Tally) -> None:
        """Called after an optimizer step; `tally` has the statistics of its decisions in all processes."""

    def metrics(self) -> Mapping[str, float]:
        """Return this modifier's metrics of the step, by names that the trainer does not use."""
        return {}


class Modifiers:
    """The modifiers of a trainer, in their order."""

    def __init__(self, modifiers: Sequence[Modifier], setup: TrainerSetup) -> None:
        self._named: dict[str, Modifier] = {}
        for modifier in modifiers:
            if not isinstance(modifier, Modifier):
                raise UsageError(f"Expected an object of a subclass of grpokit.Modifier, got {brief(modifier)}.")
            name = type(modifier).__name__
            count = sum(type(other).__name__ == name for other in self._named.values())
            self._named[f"{name}-{count + 1}" if count else name] = modifier
        monitors = [term.name for term in setup.rewards if term.monitor]
        for own_name, modifier in self._named.items():
            mistake = problem(modifier.monitors, Sequence[str])
            if mistake:
                raise UsageError(f"monitors of {own_name} {mistake}.")
            for name in modifier.monitors:
                if name not in monitors:
                    raise UsageError(
                        f"The modifier {own_name} reads the monitor '{name}', but there is no such monitor"
                        f"{nearest(name, monitors)}. Add it as a reward of weight 0."
                    )
            with forks_ended():
                modifier.begin(setup)

    @property
    def need_entropy(self) -> bool:
        """Whether one of them reads the entropy of each decision."""
        return any(modifier.needs_entropy for modifier in self._named.values())

    @property
    def need_reference(self) -> bool:
        """Whether one of them reads the reference's log-probs."""
        return any(modifier.needs_reference for modifier in self._named.values())

    def rows(self, signal: Signal, step: Step) -> Signal:
        """What the rows of all processes teach, with advantages in the precision of the log-probs."""
        rows = step.draw.all_rows
        for name, modifier in self._named.items():
            with forks_ended():
                answer = modifier.rows(signal, step)
            check_signal(answer, len(rows.groups), rows.width, modifier=name)
            signal = answer
        return replace(signal, advantages=signal.advantages.to(step.rollout.old.logprobs.dtype))

    def minibatch(self, batch: Batch) -> Batch:
        """This process's rows of the next optimizer step."""
        for name, modifier in self._named.items():
            with forks_ended():
                answer = modifier.minibatch(batch)
            check_minibatch(answer, batch, modifier=name)
            batch = answer
        return batch

    def objective(self, objective: Objective) -> Objective:
        """The objective of the next optimizer step."""
        changed = objective
        for name, modifier in self._named.items():
            with forks_ended():
                changed = modifier.objective(changed)
            check_objective(changed, objective, modifier=name)
        return changed

    def updated(self, tally: Tally) -> None:
        """An optimizer step is made."""
        for modifier in self._named.values():
            with forks_ended():
                modifier.updated(tally)

    def metrics(self) -> dict[str, float]:
        """What all of them say of themselves; the second of a class has its own name behind that of a metric."""
        metrics: dict[str, float] = {}
        for own_name, modifier in self._named.items():
            with forks_ended():
                own = modifier.metrics()
            check_own_metrics(own, modifier=own_name)
            for name, value in own.items():
                metrics[f"{name}/{own_name}" if name in metrics else name] = float(value)
        return metrics

    def parts(self) -> dict[str, Stateful]:
        """Those with a state, by names for a checkpoint."""
        return stateful("modifiers", self._named)
