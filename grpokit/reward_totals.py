"""A row's total: the weighted sum of its rewards, and what replaces a missing score in it.

This is the only definition. Advantages are made of it; metrics, reports, records and score files show it; intervals
bound it; best and worst groups are ranked by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grpokit.errors import UsageError
from grpokit.group_statistics import Groups


@dataclass(frozen=True, kw_only=True)
class FilledRewards:
    """The reward matrix without gaps.

    Attributes:
        matrix: [B, R] fp64.
        has_score: [B, R] bool, where a reward scored a row.
        scored: [B] bool, where at least one reward did.
        weights: [R] fp64.
        totals: [B] fp64 weighted sums; NaN for a row that is not scored.
        groups: which rows belong together.
    """

    matrix: Tensor
    has_score: Tensor
    scored: Tensor
    weights: Tensor
    totals: Tensor
    groups: Groups


def totals(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    """A row's total: [B] fp64; NaN for a row that no reward with a weight scored.

    Args:
        rewards: [B, R]; NaN where a reward could not score a row.
        weights: [R]; a reward with the weight 0 takes no part.
        groups: [B] int64 group ids, rows in any order; a group may have a single row.

    >>> r, g = torch.tensor([[1.0, 2.0], [3.0, torch.nan]]), torch.zeros(2, dtype=torch.int64)
    >>> totals(r, torch.tensor([1.0, 0.5]), g)
    tensor([2., 4.], dtype=torch.float64)
    """
    trained = weights != 0
    return fill(rewards[:, trained], weights[trained], groups, allow_single=True).totals


def fill(rewards: Tensor, weights: Tensor, groups: Tensor, *, allow_single: bool = False) -> FilledRewards:
    """Replace missing scores.

    A missing score is replaced by that reward's mean over the scored rows of the group, so it does not move the row
    inside its group. If the group has no score, the batch's mean replaces it, so it does not move the group; if the
    batch has none, 0 does.

    Args:
        rewards: [B, R]; NaN where a reward could not score a row.
        weights: [R].
        groups: [B] int64 group ids.
        allow_single: whether a group may have a single row.

    Raises:
        UsageError: a shape is wrong, a reward is infinite, or a group has a single row.
    """
    if rewards.ndim != 2 or weights.shape != rewards.shape[1:] or groups.shape != rewards.shape[:1]:
        raise UsageError(
            "Advantages need rewards [B, R], weights [R] and groups [B]; got "
            f"{tuple(rewards.shape)}, {tuple(weights.shape)} and {tuple(groups.shape)}."
        )
    if bool(rewards.isinf().any()):
        row, column = rewards.isinf().nonzero()[0].tolist()
        raise UsageError(f"Reward {column} of row {row} is infinite; a reward must be a finite number or NaN.")
    by_group = Groups(groups)
    if bool((by_group.sizes < 2).any()) and not allow_single:
        raise UsageError(
            f"Group {int(by_group.ids[by_group.sizes < 2][0])} has a single sample. GRPO compares the samples of a "
            "group with each other, so a group needs at least two: use a group_size of 2 or more."
        )
    r = rewards.double()
    weights = weights.to(r)
    has_score = ~r.isnan()
    scored = has_score.any(-1)  # [B, R] -> [B]
    matrix = torch.zeros_like(r)
    for k, rows in enumerate(has_score.T):
        column = r[:, k]
        in_group = by_group.mean(column, rows)
        overall = column[rows].mean() if bool(rows.any()) else 0.0
        substitute = torch.where(by_group.count(rows) > 0, in_group, overall)
        matrix[:, k] = torch.where(rows, column, substitute)
    sums = torch.where(scored, (matrix * weights).sum(-1), torch.nan)  # [B, R] -> [B]
    return FilledRewards(
        matrix=matrix, has_score=has_score, scored=scored, weights=weights, totals=sums, groups=by_group
    )
