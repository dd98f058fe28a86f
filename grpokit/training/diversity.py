"""Lets good samples that are unlike the others of their group count more (GARDO, He et al., 2025, arXiv:2512.24138)."""

from __future__ import annotations

import torch
from torch import Tensor

from grpokit.errors import RewardError
from grpokit.group_statistics import Groups
from grpokit.rewards.scoring import Scores


def diverse(advantages: Tensor, scores: Scores, monitor: str | None) -> Tensor:
    """Positive advantages times a monitor's score, over the score's mean in the group.

    Args:
        advantages: [B] or [B, T].
        scores: of the same rows, with the monitor's; a row that it could not score keeps its advantage.
        monitor: its name; None changes nothing.

    Raises:
        RewardError: a score is below 0.
    """
    if monitor is None:
        return advantages
    score = scores.matrix[:, list(scores.names).index(monitor)]
    if bool((score < 0).any()):
        raise RewardError(
            f"The diversity '{monitor}' must score at least 0, since advantages are multiplied by it; it gave "
            f"{float(score[score < 0][0]):g}."
        )
    known = ~score.isnan()
    mean = Groups(scores.groups).mean(score, known)
    factor = torch.where(known & (mean > 0), score / mean, 1.0)
    factor = factor.to(advantages).view(-1, *[1] * (advantages.ndim - 1))
    return torch.where(advantages > 0, advantages * factor, advantages)
