"""The basis of advantages: the reward matrix without gaps, and statistics inside groups.

Rows may have any order. A row is "scored" if at least one reward scored it. Statistics are over the scored rows, unless
an argument names other rows.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from grpokit.errors import UsageError

Std: TypeAlias = Literal["unbiased", "biased"]


class GroupStatistics:
    """Statistics of one batch.

    Args:
        rewards: [B, R]; NaN where a reward could not score a row.
        weights: [R].
        groups: [B] int64 group ids.
        allow_single: whether a group may have a single row.

    Attributes:
        filled: [B, R] fp64, with missing scores replaced (see `grpokit.advantages.totals`).
        totals: [B] fp64 weighted sums of `filled`; NaN for a row that is not scored.
        scored: [B] bool.
        has_score: [B, R] bool, where a reward scored a row.

    Raises:
        UsageError: a shape is wrong, a reward is infinite, or a group has a single row.
    """

    def __init__(self, rewards: Tensor, weights: Tensor, groups: Tensor, *, allow_single: bool = False) -> None:
        if rewards.ndim != 2 or weights.shape != rewards.shape[1:] or groups.shape != rewards.shape[:1]:
            raise UsageError(
                "Advantages need rewards [B, R], weights [R] and groups [B]; got "
                f"{tuple(rewards.shape)}, {tuple(weights.shape)} and {tuple(groups.shape)}."
            )
        if bool(rewards.isinf().any()):
            row, column = rewards.isinf().nonzero()[0].tolist()
            raise UsageError(f"Reward {column} of row {row} is infinite; a reward must be a finite number or NaN.")
        ids, self.index, rows = groups.unique(return_inverse=True, return_counts=True)
        if bool((rows < 2).any()) and not allow_single:
            raise UsageError(
                f"Group {int(ids[rows < 2][0])} has a single sample. GRPO compares the samples of a group with each "
                "other, so a group needs at least two: use a group_size of 2 or more."
            )
        self.groups = len(ids)
        self.dtype = rewards.dtype if rewards.is_floating_point() else torch.get_default_dtype()
        r = rewards.double()
        self.has_score = ~r.isnan()  # [B, R]
        self.weights = weights.to(r)
        self.scored = self.has_score.any(-1)  # [B]
        self.filled = torch.zeros_like(r)  # [B, R]
        for k, (column, has_score) in enumerate(zip(r.T, self.has_score.T, strict=True)):
            overall = column[has_score].mean() if bool(has_score.any()) else 0.0
            substitute = torch.where(self.count(has_score) > 0, self.mean(column, has_score), overall)
            self.filled[:, k] = torch.where(has_score, column, substitute)
        self.totals = torch.where(self.scored, (self.filled * self.weights).sum(-1), torch.nan)  # [B, R] -> [B]

    def _group_sum(self, x: Tensor) -> Tensor:
        """[B] -> [P]"""
        return torch.zeros(self.groups, dtype=x.dtype, device=x.device).index_add(0, self.index, x)

    def count(self, rows: Tensor) -> Tensor:
        """The number of `rows` [B] in each row's group: [B]."""
        return self._group_sum(rows.double())[self.index]

    def mean(self, x: Tensor, rows: Tensor) -> Tensor:
        """The mean of x [B] over the `rows` of each row's group, 0 if there are none: [B]."""
        return self._group_sum(torch.where(rows, x, 0.0))[self.index] / self.count(rows).clamp(min=1)

    def centre(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """x [B] minus its group's mean over `rows` (by default the scored ones)."""
        return x - self.mean(x, self.scored if rows is None else rows)

    def group_std(self, x: Tensor, std: Std, rows: Tensor | None = None) -> Tensor:
        """The std of x [B] over the `rows` (by default the scored ones) of each row's group: [B]."""
        rows = self.scored if rows is None else rows
        square = self._group_sum(torch.where(rows, self.centre(x, rows).square(), 0.0))[self.index]
        return (square / (self.count(rows) - _degrees(std)).clamp(min=1)).sqrt()

    def batch_std(self, x: Tensor, std: Std) -> Tensor:
        """The std of x [B] over all scored rows: a scalar, 0 if fewer than two are scored."""
        x = x[self.scored]
        return x.std(correction=_degrees(std)) if len(x) > 1 else x.new_zeros(())

    def is_constant(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """[B] True where the `rows` of the row's group have the same x, to the rounding of fp64."""
        rows = self.scored if rows is None else rows
        empty = x.new_empty(self.groups)
        low = torch.where(rows, x, torch.inf)
        high = torch.where(rows, x, -torch.inf)
        low = empty.scatter_reduce(0, self.index, low, reduce="amin", include_self=False)
        high = empty.scatter_reduce(0, self.index, high, reduce="amax", include_self=False)
        tolerance = 8 * torch.finfo(x.dtype).eps * torch.maximum(low.abs(), high.abs()).nan_to_num(posinf=0.0)
        constant: Tensor = (high - low <= tolerance)[self.index]
        return constant

    def finish(self, advantages: Tensor, total: Tensor, clip: float | None) -> Tensor:
        """Exact zeros for unscored rows and constant groups, the optional clip, and the caller's dtype."""
        advantages = torch.where(~self.scored | self.is_constant(total), 0.0, advantages)
        if clip is not None:
            if not clip > 0:
                raise UsageError(f"Advantage clip must be above 0, or None for no clip, got {clip}.")
            advantages = advantages.clamp(-clip, clip)
        return advantages.to(self.dtype)


def _degrees(std: Std) -> int:
    if std not in ("unbiased", "biased"):
        raise UsageError(f"Advantage std must be 'unbiased' or 'biased', got {std!r}.")
    return 1 if std == "unbiased" else 0
