"""A phase of a run: which policy learns, by which trainer, with which seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpokit.errors import UsageError, plural
from grpokit.sampling import mix
from grpokit.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of a run in which one policy learns.

    Attributes:
        name: letters, digits, - and _, since it names files; empty if a run has only one phase.
        trainer: trains in every round, so its `steps` are those of all rounds.
        steps: in a round.
        policy: the policy's name among those of the model; empty for a single one.
    """

    name: str
    trainer: Trainer
    steps: int
    policy: str = ""

    @staticmethod
    def seed(seed: int, place: int) -> int:
        """The seed for the trainer of the phase at a place in the list, since each draws its own prompts and noise.

        Args:
            seed: of the run.
            place: from 0.
        """
        return mix(seed, place)


def check_phases(phases: Sequence[Phase], *, rounds: int) -> None:
    """Refuse phases that do not go together in one run."""
    for place, phase in enumerate(phases):
        total = rounds * phase.steps
        if phase.trainer.steps != total:  # its schedule would end before its last step, or after it
            raise UsageError(
                f"The phase '{phase.name}' may take {plural(total, 'step')} in all rounds, and its trainer has steps="
                f"{phase.trainer.steps}. Build the trainer with steps={total}.",
                page="configs#phases",
            )
        for other in phases[:place]:
            _check_pair(other, phase)


def _check_pair(one: Phase, other: Phase) -> None:
    """Refuse two phases that the run could not tell apart, or of which one would undo what the other learns."""
    both = f"The phases '{one.name}' and '{other.name}'"
    same = one.trainer.policy is other.trainer.policy
    shared = {*one.trainer.updates.parameters} & {*other.trainer.updates.parameters}
    problem = ""
    if one.name == other.name:
        problem = f"Two phases are called '{one.name}'. Give each its own name."
    elif one.trainer.seed == other.trainer.seed:
        problem = (
            f"{both} have the same seed, {one.trainer.seed}, and would draw the same prompts with the same noise. Give "
            "each its own seed with grpokit.Phase.seed."
        )
    elif same != (one.policy == other.policy):
        problem = (
            f"{both} have {'one policy' if same else 'two policies'}, called '{one.policy}' and '{other.policy}'. "
            "Give each policy exactly one name."
        )
    elif shared and not same:
        names = [name for name, p in one.trainer.updates.names.items() if p in shared]
        problem = (
            f"The policies of the phases '{one.name}' and '{other.name}' both train the weight '{names[0]}'. Let each "
            "train its own weights, such as adapters, or use one policy in both phases."
        )
    if problem:
        raise UsageError(problem, page="configs#phases")
