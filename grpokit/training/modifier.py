"""What changes the maths of a step: modifiers, which act one after the other in a stated order.

A modifier sees the rows of all processes and decides from them alone, so that all processes decide alike. Normalisers
are fixed after the last change of rows and before any cutting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from grpokit.errors import UsageError, nearest, shown
from grpokit.objectives import Objective
from grpokit.processes.forks import forks_ended
from grpokit.processes.team import Team
from grpokit.rewards.terms import RewardTerm
from grpokit.training.batch import Batch, Signal
from grpokit.training.checks import check_signal
from grpokit.training.metrics import Tally
from grpokit.training.state import Stateful
from grpokit.training.step import Step


@dataclass(frozen=True, kw_only=True)
class TrainerSetup:
    """The trainer that a modifier belongs to.

    Attributes:
        objective: the trainer's, before any modifier changes it.
        rewards: the trained ones and the monitors.
        seed: all random draws of a modifier follow from it, the step's number and the row.
        team: the processes that train together; `team.gather(value)` gives the values of all.
    """

    objective: Objective
    rewards: Sequence[RewardTerm]
    seed: int
    team: Team


class Modifier:
    """Changes what a step learns; its methods are called in the order in which they stand here.

    A modifier with `state_dict` and `load_state_dict` is kept in checkpoints, and a failed step restores its state; so
    the state must be a copy of what changes later. All processes must come to the same result in `rows`, `objective`
    and the state.

    Attributes:
        needs_entropy: whether `minibatch` reads `batch.entropy`, which may take a pass without gradient.
        needs_reference: whether `minibatch` reads `batch.reference`, although the objective may have no KL.
        monitors: the names of the monitors that it reads from `step.scores`.
    """

    needs_entropy: bool = False
    needs_reference: bool = False
    monitors: Sequence[str] = ()

    def begin(self, setup: TrainerSetup) -> None:
        """The trainer is being built; refuse one that does not suit by a `UsageError`."""

    def rows(self, signal: Signal, step: Step) -> Signal:
        """What the rows of all processes teach, where `step` has its `scores`, its `rollout` and its `prompts`."""
        return signal

    def minibatch(self, batch: Batch) -> Batch:
        """This process's rows of the next optimizer step, whose weights have their normaliser already."""
        return batch

    def objective(self, objective: Objective) -> Objective:
        """The objective of the next optimizer step, with other coefficients.

        What it needs must stay the same: a KL that the trainer's own objective lacks would come too late.
        """
        return objective

    def updated(self, tally: Tally) -> None:
        """An optimizer step is made; `tally` has the statistics of its decisions in all processes."""

    def metrics(self) -> Mapping[str, float]:
        """What the step's metrics say of this modifier, by names of its own."""
        return {}


class Modifiers:
    """The modifiers of a trainer, in their order."""

    def __init__(self, modifiers: Sequence[Modifier], setup: TrainerSetup) -> None:
        self._all = list(modifiers)
        monitors = [term.name for term in setup.rewards if term.monitor]
        for modifier in self._all:
            if not isinstance(modifier, Modifier):
                raise UsageError(f"The modifier {shown(modifier)} is none; expected an object of a grpokit.Modifier.")
            for name in modifier.monitors:
                if name not in monitors:
                    raise UsageError(
                        f"The modifier {_name(modifier)} reads the monitor '{name}', and no monitor is called so"
                        f"{nearest(name, monitors)}. Add it as a reward of weight 0."
                    )
            with forks_ended():
                modifier.begin(setup)

    @property
    def need_entropy(self) -> bool:
        """Whether one of them reads the entropy of each decision."""
        return any(modifier.needs_entropy for modifier in self._all)

    @property
    def need_reference(self) -> bool:
        """Whether one of them reads the reference's log-probs."""
        return any(modifier.needs_reference for modifier in self._all)

    def rows(self, signal: Signal, step: Step) -> Signal:
        """What the rows of all processes teach, with advantages in the precision of the log-probs."""
        for modifier in self._all:
            with forks_ended():
                changed = modifier.rows(signal, step)
            check_signal(changed, signal.advantages.shape, modifier=_name(modifier))
            signal = changed
        return replace(signal, advantages=signal.advantages.to(step.rollout.old.logprobs.dtype))

    def minibatch(self, batch: Batch) -> Batch:
        """This process's rows of the next optimizer step."""
        for modifier in self._all:
            with forks_ended():
                batch = modifier.minibatch(batch)
        return batch

    def objective(self, objective: Objective) -> Objective:
        """The objective of the next optimizer step."""
        for modifier in self._all:
            with forks_ended():
                objective = modifier.objective(objective)
        return objective

    def updated(self, tally: Tally) -> None:
        """An optimizer step is made."""
        for modifier in self._all:
            with forks_ended():
                modifier.updated(tally)

    def metrics(self) -> dict[str, float]:
        """What all of them say of themselves."""
        metrics: dict[str, float] = {}
        for modifier in self._all:
            with forks_ended():
                metrics |= modifier.metrics()
        return metrics

    def parts(self) -> dict[str, Stateful]:
        """Those with a state, by names for a checkpoint."""
        named = {f"modifiers/{place}-{type(modifier).__name__}": modifier for place, modifier in enumerate(self._all)}
        return {name: modifier for name, modifier in named.items() if isinstance(modifier, Stateful)}


def _name(modifier: Modifier) -> str:
    return type(modifier).__name__
