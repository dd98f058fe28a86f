"""Looks at the scores of the first step."""

from __future__ import annotations

from collections.abc import Sequence

from grpokit.data import PromptSequence
from grpokit.errors import UsageError, shown
from grpokit.guards.observer import Observer
from grpokit.rewards.terms import RewardTerm
from grpokit.training.step import Step
from grpokit.types import Prompt


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
            if not step.scores.asked[i] and not term.monitor:
                raise UsageError("The policy made no output in the first step, so nothing can be scored or trained.")
            unscored = bool(step.scores.matrix[:, i].isnan().all())
            if term.monitor or step.scores.failed[i] or not unscored:
                continue
            reasons = [term.unscorable(prompt) if term.unscorable else "" for prompt in prompts]
            if all(reasons):
                continue
            raise UsageError(
                f"The reward '{term.name}' could score no sample of the first step (NaN for all), so it would train "
                f"nothing. Prompts such as {_in_words(prompts[reasons.index('')])}. Give them what it reads "
                "(data.columns says which column is the target; a sample's info is the policy's, or comes from the "
                "facts of its world), or remove it (weight: 0 only measures it). A reward that can score only some "
                "prompts says so with `unscorable`.",
                page="guards#before-the-first-step",
            )
        return []


def _in_words(prompt: Prompt) -> str:
    """What a reward can read of a prompt: what it looks for is not known."""
    target = ["a target"] if prompt.target is not None else []
    source = ["a source picture"] if prompt.images else []
    columns = [f"meta[{name!r}]" for name in prompt.meta]
    return f"{shown(prompt.text)} have {' and '.join(target + source + columns) or 'nothing but their text'}"
