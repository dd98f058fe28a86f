"""Watches for steps without a gradient, where rewards do not teach: the policy is then what it is held to."""

from __future__ import annotations

from grpokit.errors import RunError, plural
from grpokit.guards.observer import Observer
from grpokit.training.state import State
from grpokit.training.step import LearningStep

_CAUSES = (
    "Usual causes: no teacher is named, or the reference is an average of the policy's own weights, which is where the "
    "policy is and stays there. Set policy.teachers, or policy.reference_guidance."
)


class NoGradient(Observer):
    """Watches for steps whose gradients are exactly 0, for an objective that learns without rewards.

    It warns in the first of them, and raises after `most` in a row. Single ones may be right: a student may begin as
    one of its teachers.

    Args:
        most: None for no limit.
        updates: of each step.
    """

    def __init__(self, most: int | None, *, updates: int) -> None:
        self.most, self.updates = most, updates
        self.count = 0
        self.warned = False

    def updated(self, step: LearningStep) -> list[str]:
        """Count a step after the last of its updates."""
        if step.update < self.updates:
            return []
        decided = sum(tally.decided for tally in step.tallies)
        if any(step.norms) or not decided:
            self.count = 0
            return []
        self.count += 1
        if self.most is not None and self.count >= self.most:
            raise RunError(
                f"In {plural(self.count, 'step')} in a row the gradient was 0, so nothing was learned: the policy and "
                f"its teacher say the same. {_CAUSES}",
                page="guards#while-it-runs",
            )
        if self.warned:
            return []
        self.warned = True
        limit = "" if self.most is None else f" If this goes on for {self.most} steps, the run stops."
        return [
            f"In step {step.number} the gradient was 0, so nothing was learned: the policy and its teacher say the "
            f"same. {_CAUSES}{limit}"
        ]

    def state_dict(self) -> State:
        """The counts."""
        return {"count": self.count, "warned": self.warned}

    def load_state_dict(self, state: State) -> None:
        """Load a result of `state_dict`."""
        self.count, self.warned = state["count"], state["warned"]
