"""Advantages: pure functions from a reward matrix to one number per sample.

All have the signature `(rewards [B, R], weights [R], groups [B]) -> [B]`. `groups` says which rows belong together,
so rows may have any order. The arithmetic is fp64. NaN means that a reward could not score a row; `totals` says what
replaces it. A row that no reward scored gets exactly 0 and is left out of all statistics. Every row of a group with
equal totals gets 0 too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from grpokit.errors import UsageError
from grpokit.group_statistics import GroupStatistics, Std

AdvantageFn: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
Scale: TypeAlias = Literal["group", "batch", "none"]


def group(
    rewards: Tensor,
    weights: Tensor,
    groups: Tensor,
    *,
    scale: Scale = "group",
    std: Std = "unbiased",
    eps: float = 1e-4,
    clip: float | None = None,
) -> Tensor:
    """Z-score of the weighted sum of rewards inside each group: A = (r - mean) / (std + eps).

    From DeepSeekMath (Shao et al., 2024, arXiv:2402.03300, section 4.1.2).

    Args:
        rewards: [B, R]; NaN where a reward could not score a row.
        weights: [R].
        groups: [B] int64 group ids, rows in any order.
        scale: divide by the group's std, by the std over the whole batch, or by nothing.
        std: "unbiased" (n - 1) or "biased" (n).
        eps: added to the std.
        clip: the bound of |A|; None for no bound.

    Returns:
        [B] in the dtype of `rewards` (fp32 for integers).

    Raises:
        UsageError: a shape is wrong, or a group has a single row.

    >>> r, g = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.zeros(4, dtype=torch.int64)
    >>> group(r, torch.ones(1), g)
    tensor([-1.1618, -0.3873,  0.3873,  1.1618])
    """
    b = GroupStatistics(rewards, weights, groups)
    total = b.totals
    centred = b.centre(total)
    if scale == "group":
        centred = centred / (b.group_std(total, std) + eps)
    elif scale == "batch":
        centred = centred / (b.batch_std(total, std) + eps)
    elif scale != "none":
        raise UsageError(f"Advantage scale must be 'group', 'batch' or 'none', got {scale!r}.")
    return b.finish(centred, total, clip)


def centred(rewards: Tensor, weights: Tensor, groups: Tensor, *, clip: float | None = None) -> Tensor:
    """Reward minus the group's mean, without a division: Dr. GRPO (Liu et al., 2025, arXiv:2503.20783).

    Arguments, return value and errors as for `group`.
    """
    return group(rewards, weights, groups, scale="none", clip=clip)


def rloo(rewards: Tensor, weights: Tensor, groups: Tensor, *, clip: float | None = None) -> Tensor:
    """Reward minus the mean of the *other* samples of the group (leave-one-out).

    From RLOO (Ahmadian et al., 2024, arXiv:2402.14740). Equal to (r - mean) * n / (n - 1) with n scored rows.
    Arguments, return value and errors as for `group`.
    """
    b = GroupStatistics(rewards, weights, groups)
    total = b.totals
    n = b.count(b.scored)
    return b.finish(b.centre(total) * n / (n - 1).clamp(min=1), total, clip)


def gdpo(
    rewards: Tensor,
    weights: Tensor,
    groups: Tensor,
    *,
    std: Std = "unbiased",
    eps: float = 1e-4,
    clip: float | None = None,
) -> Tensor:
    """Z-score per reward inside the group, weighted sum, then z-score over the batch.

    From GDPO (Liu et al., 2026, arXiv:2601.05242). In a sum of raw rewards the one with the largest spread dominates;
    here a reward's influence is its weight. A reward's z-scores are over the rows that it scored. Arguments, return
    value and errors as for `group`.
    """
    b = GroupStatistics(rewards, weights, groups)
    total = torch.zeros_like(b.filled[:, 0])
    for column, rows, weight in zip(b.filled.T, b.has_score.T, b.weights, strict=True):
        z = b.centre(column, rows) / (b.group_std(column, std, rows) + eps)
        total = total + weight * torch.where(b.is_constant(column, rows), 0.0, z)
    centred = total - total[b.scored].mean() if bool(b.scored.any()) else total
    return b.finish(centred / (b.batch_std(total, std) + eps), total, clip)


def totals(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    """A row's total, the weighted sum of its rewards: [B] fp64; NaN for a row that no reward with a weight scored.

    This is the only definition: advantages, metrics, reports and files all use it. A missing score is replaced by that
    reward's mean over the scored rows of the group, so it does not move the row inside its group. If the group has no
    score, the batch's mean replaces it, so it does not move the group; if the batch has none, 0 does.

    Arguments as for `group`, but a group may have a single row.

    >>> r, g = torch.tensor([[1.0, 2.0], [3.0, torch.nan]]), torch.zeros(2, dtype=torch.int64)
    >>> totals(r, torch.tensor([1.0, 0.5]), g)
    tensor([2., 4.], dtype=torch.float64)
    """
    trained = weights != 0
    return GroupStatistics(rewards[:, trained], weights[trained], groups, allow_single=True).totals


def zero_std_groups(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    """[P] bool, True for a group (ascending id) whose totals are all equal: it gives no gradient."""
    b = GroupStatistics(rewards, weights, groups, allow_single=True)
    constant = b.is_constant(b.totals)
    return torch.ones(b.groups, dtype=torch.bool, device=rewards.device).scatter_reduce(
        0, b.index, constant, reduce="amin"
    )
