"""Looks at the scores of the first step."""

from __future__ import annotations

from collections.abc import Sequence

from grpokit.data import PromptSequence
from grpokit.errors import UsageError, shown
from grpokit.guards.observer import Observer
from grpokit.rewards.needs import lacking
from grpokit.rewards.terms import RewardTerm
from grpokit.training.step import Step


class FirstScores(Observer):
    """Stops if a reward could score no sample of the first step, and did not fail: the data lack what it needs.

    A reward that says it cannot score any of the step's prompts passes, since other steps have others.
    """

    def __init__(self, terms: Sequence[RewardTerm], prompts: PromptSequence) -> None:
        self.terms, self.prompts = terms, prompts

    def drawn(self, step: Step) -> list[str]:
        """Look at the first step."""
        if step.number > 1:
            return []
        prompts = [self.prompts.unopened(i) for i in step.prompts]
        for i, term in enumerate(self.terms):
            if term.monitor or step.scores.failed[i] or not bool(step.scores.matrix[:, i].isnan().all()):
                continue
            if term.unscorable is not None and all(map(term.unscorable, prompts)):
                continue
            there = {"target": any(p.target is not None for p in prompts), "image": any(p.images for p in prompts)}
            lacks = [lacking(role, prompts) for role in there if not there[role]]
            note = f" For prompts such as {shown(prompts[0].text)} {' and '.join(lacks)}." if lacks else ""
            raise UsageError(
                f"The reward '{term.name}' could score no sample of the first step (NaN for all), so it would train "
                f"nothing.{note} Give the prompts what it reads, or remove it (weight: 0 only measures it). A reward "
                "that can score only some prompts says so with `unscorable`.",
                page="guards#before-the-first-step",
            )
        return []
