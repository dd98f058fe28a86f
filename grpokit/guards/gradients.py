"""Stops before an optimizer step whose loss is not a number, or whose log-probs are not those of the rollout."""

from __future__ import annotations

import math

from grpokit.errors import RunError
from grpokit.guards.observer import Observer
from grpokit.processes.fsdp2 import gathered
from grpokit.processes.team import Team
from grpokit.settings import TrainerSettings
from grpokit.training.checked_policy import CheckedPolicy, not_finite
from grpokit.training.checks import LogprobDiffLimit, check_logprob_diff
from grpokit.training.out_of_memory import Sizes
from grpokit.training.step import LearningStep


class Gradients(Observer):
    """Looks at the loss and the statistics of each optimizer step before it is made."""

    def __init__(self, settings: TrainerSettings, policy: CheckedPolicy, *, sizes: Sizes, team: Team) -> None:
        self.settings = settings
        self.policy = policy
        self.sizes = sizes
        self.team = team

    def differentiated(self, step: LearningStep) -> list[str]:
        """Stop if the loss is not finite, or the log-probs differ from the rollout's before any update."""
        if not all(map(math.isfinite, step.losses[-1])):
            with gathered():  # by all processes
                self._explain(step)
        tally = step.tallies[-1]
        rollout = step.minibatch.rollout
        if rollout.version == self.policy.version and not rollout.averaged:  # the weights drew it that are trained
            low = self.policy.low_precision or not rollout.exact
            limit = LogprobDiffLimit.of(self.settings.max_logprob_diff, low_precision=low)
            mean = tally.means().get("logprob_diff", 0.0)
            _, largest = tally.extremes("logprob_diff")
            check_logprob_diff(mean, largest, limit, step=step.number, exact=rollout.exact)
        if not tally.decided:
            masked = bool(step.signal.weights.all())
            cause = "all decisions of its rows are masked" if masked else "no row is left that has a decision"
            return [f"Update {step.update} of step {step.number} changes nothing: {cause}."]
        return []

    def _explain(self, step: LearningStep) -> None:
        """Find the row, its prompt and the decision behind a loss of this process that is not finite."""
        loss = step.losses[-1][self.team.rank]
        batch = step.minibatch
        if math.isfinite(loss):
            return
        logprobs = self.policy.all_logprobs(batch.rollout, self.sizes.limit).logprobs
        place = not_finite(batch.rollout, logprobs, batch.numbers)
        cause = (
            f"logprobs() gives {place}"
            if place
            else "the new log-probs are finite, so it comes from the objective, the reference or the advantages"
        )
        raise RunError(
            f"The loss is {loss} in step {step.number}, update {step.update}; this update was not made: {cause}. Usual "
            "causes: a learning rate that is too high, or an overflow in low precision.",
            page="guards#while-it-runs",
        )
