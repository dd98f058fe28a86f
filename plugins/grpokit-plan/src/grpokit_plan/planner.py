"""Plans a run with and without changes, each once, and finds the changes with which it fits on a card."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grpokit_plan.cards import Card
from grpokit_plan.estimate import Estimate
from grpokit_plan.needs import Job, Needs, Remedy
from grpokit_plan.remedies import advise


class Planner:
    """The plans of a run.

    Args:
        plan: `key=value` words that change the config -> the step and what it needs.

    Attributes:
        job: the step without changes.
    """

    def __init__(self, plan: Callable[[tuple[str, ...]], tuple[Job, Needs]]) -> None:
        self._plan = plan
        self.job, needs = plan(())
        self._needs: dict[tuple[str, ...], Needs] = {(): needs}

    def on(self, card: Card, changes: tuple[str, ...] = ()) -> Estimate:
        """The run on a card.

        Raises:
            GrpokitError: the changes do not go with the config.
        """
        if changes not in self._needs:
            self._needs[changes] = self._plan(changes)[1]
        return Estimate(card=card, needs=self._needs[changes])

    def remedies(self, card: Card) -> Sequence[Remedy]:
        """Changes with which the run fits on a card: none if it does already, and all of them if nothing helps."""

        def fits(changes: tuple[str, ...]) -> tuple[Needs, bool]:
            estimate = self.on(card, changes)
            return estimate.needs, estimate.fits

        first = self.on(card)
        return [] if first.fits else advise(self.job, first.needs, fits)
