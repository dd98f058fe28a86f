"""Guards of rewards: that they score the first step and most rows, and that none takes most of a step unseen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import compress

from grpokit.data import PromptSequence
from grpokit.errors import UsageError, brief
from grpokit.guards.observer import Observer
from grpokit.processes.team import Team
from grpokit.rewards.submission import Submits
from grpokit.rewards.terms import RewardTerm
from grpokit.training.state import State
from grpokit.training.step import LearningStep, Step
from grpokit.types import Prompt


class FirstScores(Observer):
    """Stops if a reward could score no sample of the first step, and did not fail: the data lack what it needs.

    A reward that says it cannot score any of the step's prompts passes, since other steps have others.
    """

    def __init__(self, terms: Sequence[RewardTerm], prompts: PromptSequence) -> None:
        self.terms, self.prompts = terms, prompts

    def scored(self, step: Step) -> list[str]:
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
    return f"{brief(prompt.text)} have {' and '.join(target + source + columns) or 'nothing but their text'}"


class UnscoredRows(Observer):
    """Warns once of each reward that left half of a step's rows or more unscored.

    Rows do not count that an exception cost, which has a warning of its own, or whose prompts the reward says it cannot
    score.
    """

    def __init__(self, terms: Sequence[RewardTerm], prompts: PromptSequence) -> None:
        self.terms, self.prompts = terms, prompts
        self.warned: list[str] = []

    def scored(self, step: Step) -> list[str]:
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
            outcome = "Its mean is that of the other rows."
            if not term.monitor:
                outcome = "It teaches nothing about such a row, whose score is taken to be the mean of its group."
            warnings.append(
                f"The reward '{term.name}' left {sum(counts) / len(unscored):.0%} of the rows of step {step.number} "
                f"unscored (NaN). {outcome} The metric rewards/{term.name}/unscored counts them in each step."
            )
        return warnings

    def state_dict(self) -> State:
        """The rewards that were named."""
        return {"warned": [*self.warned]}

    def load_state_dict(self, state: State) -> None:
        """Load a result of `state_dict`."""
        self.warned = [*state["warned"]]


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

    def updated(self, step: LearningStep) -> list[str]:
        """Measure a step that counts."""
        if step.number in self.STEPS:
            self.totals[step.number] = time.perf_counter() - step.log.start
            scores = step.scores
            self.seconds[step.number] = dict(zip(scores.names, scores.seconds, strict=True))
        return []

    def scored(self, step: Step) -> list[str]:
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
