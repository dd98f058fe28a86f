"""Warns of a reward that cannot score many rows of a step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from grpokit.data import PromptSequence
from grpokit.guards.observer import Observer
from grpokit.rewards.terms import RewardTerm
from grpokit.training.state import State
from grpokit.training.step import Step


class UnscoredRows(Observer):
    """Warns once of each reward that left half of a step's rows or more unscored.

    Rows do not count that an exception cost, which has a warning of its own, or whose prompts the reward says it cannot
    score.
    """

    def __init__(self, terms: Sequence[RewardTerm], prompts: PromptSequence) -> None:
        self.terms, self.prompts = terms, prompts
        self.warned: list[str] = []

    def drawn(self, step: Step) -> list[str]:
        """Count the rows of each reward that was asked."""
        warnings = []
        unscored = step.scores.matrix.isnan() & ~step.scores.lost  # [B, R]
        for i, term in enumerate(self.terms):
            if term.name in self.warned or not step.scores.asked[i]:
                continue
            by_prompt = unscored[:, i].view(len(step.prompts), -1)  # [B] -> [P, G]
            counts = by_prompt.sum(1).tolist()
            if 2 * sum(counts) >= len(unscored) and term.unscorable:
                scorable = [not term.unscorable(self.prompts.unopened(prompt)) for prompt in step.prompts]
                counts = [*compress(counts, scorable)]
            if 2 * sum(counts) < len(unscored):
                continue
            self.warned.append(term.name)
            warnings.append(
                f"The reward '{term.name}' left {sum(counts) / len(unscored):.0%} of the rows of step {step.number} "
                "unscored (NaN). It teaches nothing about such a row, whose score is taken to be the mean of its "
                f"group. The metric rewards/{term.name}/unscored counts them in each step."
            )
        return warnings

    def state_dict(self) -> State:
        """The rewards that were named."""
        return {"warned": [*self.warned]}

    def load_state_dict(self, state: State) -> None:
        """Load a result of `state_dict`."""
        self.warned = [*state.get("warned", [])]
