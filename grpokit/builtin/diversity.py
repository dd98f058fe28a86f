"""Lets good samples that are unlike the others of their group count more (GARDO, He et al., 2025, arXiv:2512.24138)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from grpokit import Modifier, RewardError, Signal, Step
from grpokit.group_statistics import Groups


@dataclass(eq=False, kw_only=True)
class Diversity(Modifier):
    """Multiplies positive advantages by a monitor's score, divided by the mean score of the group.

    A sample that the monitor could not score keeps its advantage.

    Attributes:
        monitor: the name of a monitor whose scores are at least 0.
    """

    monitor: str

    @property
    def monitors(self) -> Sequence[str]:  # type: ignore[override]  # a setting of its own
        """The one monitor."""
        return [self.monitor]

    def rows(self, signal: Signal, step: Step) -> Signal:
        """Change the advantages.

        Raises:
            RewardError: a score is below 0.
        """
        score = step.scores.column(self.monitor)
        if bool((score < 0).any()):
            negative = float(score[score < 0][0])
            raise RewardError(f"diversity needs scores of at least 0; its monitor '{self.monitor}' gave {negative:g}.")
        known = ~score.isnan()
        mean = Groups(step.scores.groups).mean(score, known)
        factor = torch.where(known & (mean > 0), score / mean, 1.0)
        advantages = signal.advantages
        factor = factor.to(advantages).view(-1, *[1] * (advantages.ndim - 1))  # [B] -> [B] or [B, 1]
        return replace(signal, advantages=torch.where(advantages > 0, advantages * factor, advantages))
