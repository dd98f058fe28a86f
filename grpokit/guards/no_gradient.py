"""Watches for steps without a gradient, where rewards do not teach: the policy is then what it is held to."""

from __future__ import annotations

from grpokit.errors import RunError, plural
from grpokit.guards.streak import Streak
from grpokit.training.step import LearningStep

_CAUSES = (
    "Usual causes: no teacher is named, or the reference is an average of the policy's own weights, which is where the "
    "policy is and stays there. Set policy.teachers, or for diffusion models policy.reference_guidance."
)


class NoGradient(Streak):
    """Watches for steps whose gradients are exactly 0, for an objective that learns without rewards.

    It warns in the first of them, and raises after `most` in a row. Single ones may be right: a student may begin as
    one of its teachers.

    Args:
        most: None for no limit.
        updates: of each step.
    """

    def __init__(self, most: int | None, *, updates: int) -> None:
        super().__init__(most)
        self.updates = updates

    def updated(self, step: LearningStep) -> list[str]:
        """Count a step after the last of its updates."""
        if step.update < self.updates:
            return []
        decided = sum(tally.decided for tally in step.tallies)
        if any(step.norms) or not decided:
            self.count = 0
            return []
        ended = self.count_one()
        same = "the gradient was 0, so nothing was learned: the policy and its teacher say the same"
        if ended:
            stretch = f"In {plural(self.count, 'step')} in a row {same}."
            raise RunError(f"{stretch} {_CAUSES}", page="guards#while-it-runs")
        return self.warn_once(f"In step {step.number} {same}. {_CAUSES}")
