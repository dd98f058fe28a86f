"""What one step of a trainer did: its numbers, its samples and what they were trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from grpokit.types import Rollout


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one `Trainer.step()` did.

    Attributes:
        step: the step's number, from 1.
        metrics: name -> value, as written to `metrics.jsonl`.
        rollout: the samples that were drawn and trained on.
        rewards: [B, R] from the rewards; NaN where a reward could not score.
        reward_names: R names, the columns of `rewards`.
        totals: [B] fp64, each row's weighted sum (see `grpokit.reward_totals.totals`).
        advantages: [B] or [B, T].
        prompts: P indices into the training prompts, in the order of the groups.
        warnings: from guards that did not stop the step; a sentence or two each.
        phase: the phase that the step belongs to; empty where a run has only one.
        phase_step: the step's number among those of the phase, from 1; 0 where a run has only one.
    """

    step: int
    metrics: Mapping[str, float]
    rollout: Rollout = field(repr=False)
    rewards: Tensor = field(repr=False)
    reward_names: Sequence[str]
    totals: Tensor = field(repr=False)
    advantages: Tensor = field(repr=False)
    prompts: Sequence[int] = ()
    warnings: Sequence[str] = ()
    phase: str = ""
    phase_step: int = 0

    def row_advantages(self) -> Tensor:
        """[B] fp64 on the CPU: each row's advantage, or the mean of its decisions' advantages."""
        advantages = self.advantages.detach().cpu().double()
        if advantages.dim() == 1:
            return advantages
        mask = self.rollout.mask.cpu()
        sums = advantages.masked_fill(~mask, 0.0).sum(-1)  # [B, T] -> [B]
        return sums / mask.sum(-1).clamp(min=1)
