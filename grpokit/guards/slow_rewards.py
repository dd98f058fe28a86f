"""Hints at worker processes where a reward takes most of a step."""

from __future__ import annotations

import time
from collections.abc import Sequence

from grpokit.guards.observer import Observer
from grpokit.processes.team import Team
from grpokit.rewards.submission import Submits
from grpokit.rewards.terms import RewardTerm
from grpokit.training.step import Step


class SlowRewards(Observer):
    """Names each reward of the run's own process that takes half of the first steps or more, and a second a step.

    The first step does not count, since it loads weights. Process 0 alone looks, since each has times of its own.
    """

    STEPS = (2, 3, 4)
    SHARE, SECONDS = 0.5, 1.0

    def __init__(self, terms: Sequence[RewardTerm], team: Team) -> None:
        self.names = [term.name for term in terms if not isinstance(term.reward, Submits)]
        self.team = team
        self.totals: dict[int, float] = {}  # step -> its seconds up to the latest update
        self.seconds: dict[int, dict[str, float]] = {}  # step -> reward -> seconds

    def updated(self, step: Step) -> list[str]:
        """Measure a step that counts."""
        if step.number in self.STEPS:
            self.totals[step.number] = time.perf_counter() - step.notes.start
            scores = step.scores
            self.seconds[step.number] = dict(zip(scores.names, scores.seconds, strict=True))
        return []

    def drawn(self, step: Step) -> list[str]:
        """Give the hints after the last step that counts; a run that was resumed among these gives none."""
        if self.team.rank or step.number != self.STEPS[-1] + 1:
            return []
        if len(self.totals) < len(self.STEPS):
            return []
        hints = []
        for name in self.names:
            seconds = sum(own[name] for own in self.seconds.values())
            share = seconds / sum(self.totals.values())
            each = seconds / len(self.STEPS)
            if share >= self.SHARE and each >= self.SECONDS:
                hints.append(
                    f"The reward '{name}' took {share:.0%} of steps {self.STEPS[0]} to {self.STEPS[-1]}, {each:.1f} s "
                    "in each. If it is slow on each sample, `workers: 2` in its config has two processes score at the "
                    "same time, beside other rewards and log-prob passes. A neural net that scores many samples at "
                    "once is faster as it is."
                )
        return hints
