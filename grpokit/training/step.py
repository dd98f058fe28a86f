"""A training step while it is under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from grpokit.processes.team import Team
from grpokit.rewards.scoring import Scores
from grpokit.tracking.step_report import StepReport
from grpokit.training import metrics
from grpokit.training.batch import Batch, Signal
from grpokit.training.checks import check_metrics
from grpokit.training.rollouts import Drawn
from grpokit.types import Rollout


@dataclass(kw_only=True)
class Step:
    """What is known of a step so far; later moments know more.

    Attributes:
        number: of the step, from 1.
        notes: warnings and times.
        drawn: its groups.
        scores: of the rows of all processes.
        zero_std: [P] bool, the groups whose rows have the same reward: they have no advantage before any modifier.
        signal: what the same rows teach, after all modifiers.
        minibatch: this process's rows of the latest optimizer step.
        losses: of the optimizer steps so far, each as the parts of all processes.
        tallies: statistics of their decisions.
        norms: of their gradients, before clipping.
    """

    number: int
    notes: metrics.Notes
    drawn: Drawn = field(init=False)
    scores: Scores = field(init=False)
    zero_std: Tensor = field(init=False)
    signal: Signal = field(init=False)
    minibatch: Batch = field(init=False)
    losses: list[Sequence[float]] = field(default_factory=list)
    tallies: list[metrics.Tally] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)

    @property
    def update(self) -> int:
        """The latest optimizer step of this step, from 1."""
        return len(self.losses)

    @property
    def rollout(self) -> Rollout:
        """This process's rows."""
        return self.drawn.rollout

    @property
    def prompts(self) -> Sequence[int]:
        """P indices into the training prompts."""
        return self.drawn.prompts

    @property
    def decisions(self) -> Tensor:
        """[B] int64, the number of decisions of each row of all processes."""
        return self.drawn.rows.decided

    @property
    def advantages(self) -> Tensor:
        """[B] or [B, T], of the rows of all processes."""
        return self.signal.advantages

    def learning(self, batch: Batch) -> Batch:
        """The batch with what this process's rows teach."""
        logprobs = batch.rollout.old.logprobs
        return replace(
            batch,
            numbers=batch.numbers + self.drawn.rows.share.start,
            advantages=self.drawn.local(self.advantages).to(logprobs, non_blocking=True),
            kl_weights=self.drawn.local(self.signal.kl_weights).to(logprobs, non_blocking=True),
        )

    def report(self, team: Team, rates: Mapping[str, float], further: Mapping[str, float]) -> StepReport:
        """What the step did, in all processes, with metrics of its updates, and `further` ones of modifiers."""
        own = self.notes.metrics(), self.notes.warnings
        times, warnings = zip(*team.gather(own), strict=True)
        own_metrics = {
            "step": self.number,
            "loss": sum(map(sum, self.losses)) / len(self.losses),
            **metrics.reward_metrics(self.scores, self.advantages),
            "frac_reward_zero_std": float(self.zero_std.double().mean()),
            **self.drawn.metrics,
            **metrics.decision_metrics(metrics.Tally.merged(self.tallies)),
            "grad_norm": sum(self.norms) / len(self.norms),
            **rates,
            **metrics.length_metrics(self.drawn.rows),
            **metrics.slowest(times),
        }
        check_metrics(further, own_metrics)
        return StepReport(
            step=self.number,
            metrics={**own_metrics, **further},
            rollout=self.rollout,
            rewards=self.scores.matrix,
            reward_names=self.scores.names,
            totals=self.scores.totals,
            advantages=self.advantages,
            prompts=self.prompts,
            warnings=list(dict.fromkeys(line for part in warnings for line in part)),
        )
