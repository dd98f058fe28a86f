"""What follows a trainer's steps from outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from grpokit.errors import UsageError, brief
from grpokit.files import PLAIN_NAME, is_plain_name

if TYPE_CHECKING:  # a plugin's light module may define an observer, and torch takes seconds to import
    from grpokit.training.step import LearningStep, Step


class Observer:
    """Follows the steps of a trainer; in a run of several processes each process has its own.

    Every method gets the step as far as it is known. It returns warnings, a sentence or two each, and may raise an
    error, which stops the step. It must not change the step. An observer with `state_dict` and
    `load_state_dict` is kept in checkpoints under its name, and a failed step restores its state; so the state must be
    a copy of what changes later. An observer that a resumed checkpoint does not know keeps its state.
    """

    def scored(self, step: Step) -> Iterable[str]:
        """The groups are drawn and have their rewards: `step.rollout`, `step.prompts`, `step.scores`."""
        return ()

    def weighted(self, step: LearningStep) -> Iterable[str]:
        """Each sample has its advantage, after all modifiers: `step.advantages`."""
        return ()

    def differentiated(self, step: LearningStep) -> Iterable[str]:
        """An optimizer step has its loss and its gradient: `step.minibatch`, `step.losses`, `step.tallies`."""
        return ()

    def updated(self, step: LearningStep) -> Iterable[str]:
        """An optimizer step is made: `step.norms`."""
        return ()


def check_observers(observers: Mapping[str, Observer]) -> dict[str, Observer]:
    """The observers that were given, by names that files can have."""
    for name, observer in observers.items():
        if not isinstance(observer, Observer):
            raise UsageError(f"The observer '{name}' is {brief(observer)}; expected a grpokit.Observer.")
        if not is_plain_name(name):
            raise UsageError(f"An observer's name may have {PLAIN_NAME}, got {brief(name)}.")
    return dict(observers)
