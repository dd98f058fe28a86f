"""A training step while it is under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from grpokit.processes.team import Team
from grpokit.rewards.scoring import Scores
from grpokit.tracking.step_report import StepReport
from grpokit.training import metrics
from grpokit.training.checks import check_metrics
from grpokit.training.metrics import StepLog, Tally
from grpokit.training.minibatches import Batch, Signal
from grpokit.training.rollouts import Draw
from grpokit.types import Rollout


@dataclass(kw_only=True)
class Step:
    """A step whose groups are drawn and have their rewards.

    Attributes:
        number: of the step, from 1.
        log: warnings and times.
        draw: its groups.
        scores: of the rows of all processes.
    """

    number: int
    log: StepLog
    draw: Draw
    scores: Scores

    @property
    def rollout(self) -> Rollout:
        """This process's rows."""
        return self.draw.rollout

    @property
    def prompts(self) -> Sequence[int]:
        """P indices into the training prompts."""
        return self.draw.prompts

    @property
    def decisions(self) -> Tensor:
        """[B] int64, the number of decisions of each row of all processes."""
        return self.draw.all_rows.decided


@dataclass(kw_only=True)
class LearningStep(Step):
    """A step whose samples have their advantages; its optimizer steps follow.

    Attributes:
        zero_std_groups: [P] bool, those whose advantages are all 0 before any modifier.
        signal: what the rows of all processes teach, after all modifiers.
        minibatch: this process's rows of the latest optimizer step.
        losses: of the optimizer steps so far, each as the parts of all processes.
        tallies: statistics of their decisions.
        norms: of their gradients, before clipping.
    """

    zero_std_groups: Tensor
    signal: Signal
    minibatch: Batch = field(init=False)
    losses: list[Sequence[float]] = field(default_factory=list)
    tallies: list[Tally] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)

    @property
    def update(self) -> int:
        """The latest optimizer step of this step, from 1."""
        return len(self.losses)

    @property
    def advantages(self) -> Tensor:
        """[B] or [B, T], of the rows of all processes."""
        return self.signal.advantages

    def report(self, team: Team, rates: Mapping[str, float], further: Mapping[str, float]) -> StepReport:
        """What the step did, in all processes, with metrics of its updates, and `further` ones of modifiers."""
        own = self.log.metrics(), self.log.warnings
        times, warnings = zip(*team.gather(own), strict=True)
        equal = {"frac_reward_zero_std": float(self.zero_std_groups.double().mean())}
        own_metrics = {
            "step": self.number,
            "loss": sum(map(sum, self.losses)) / len(self.losses),
            **metrics.reward_metrics(self.scores, self.advantages),
            **(equal if self.scores.trained.names else {}),
            **self.draw.metrics,
            **metrics.decision_metrics(Tally.merged(self.tallies)),
            "grad_norm": sum(self.norms) / len(self.norms),
            **rates,
            **metrics.length_metrics(self.draw.all_rows),
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
