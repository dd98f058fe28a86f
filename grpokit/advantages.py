"""Advantages: pure functions from a reward matrix to one number per sample.

All have the signature `(rewards [B, R], weights [R], groups [B]) -> [B]`; rows may stand in any order, for `groups`
says which belong together. The arithmetic is fp64. NaN means that a reward could not score a row: the row then takes
the mean of its group's scored rows for that reward (the batch's where there are none), so it says nothing. A row that
no reward scored gets exactly 0 and stays out of all statistics, and so does a group whose scores are all equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from grpokit.errors import UsageError

AdvantageFn: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
Std: TypeAlias = Literal["unbiased", "biased"]
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
        clip: the largest |A| let through.

    Returns:
        [B] in the dtype of `rewards` (fp32 for integers).

    Raises:
        UsageError: a shape is wrong, or a group has a single row.

    >>> r, g = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.zeros(4, dtype=torch.int64)
    >>> group(r, torch.ones(1), g)
    tensor([-1.1618, -0.3873,  0.3873,  1.1618])
    """
    b = _Batch(rewards, weights, groups)
    total = (b.filled * b.weights).sum(-1)  # [B, R] -> [B]
    centred = b.centre(total)
    if scale == "group":
        centred = centred / (b.group_std(total, std) + eps)
    elif scale == "batch":
        centred = centred / (b.batch_std(total, std) + eps)
    elif scale != "none":
        raise UsageError(f"Advantage scale must be 'group', 'batch' or 'none', got {scale!r}.")
    return b.finish(centred, total, clip)


def centred(rewards: Tensor, weights: Tensor, groups: Tensor, *, clip: float | None = None) -> Tensor:
    """Reward minus the group's mean, not divided by anything: Dr. GRPO (Liu et al., 2025, arXiv:2503.20783).

    Arguments, return value and errors as for `group`.
    """
    return group(rewards, weights, groups, scale="none", clip=clip)


def rloo(rewards: Tensor, weights: Tensor, groups: Tensor, *, clip: float | None = None) -> Tensor:
    """Reward minus the mean of the *other* samples of the group (leave-one-out).

    From RLOO (Ahmadian et al., 2024, arXiv:2402.14740). Equal to (r - mean) * n / (n - 1) with n scored rows.
    Arguments, return value and errors as for `group`.
    """
    b = _Batch(rewards, weights, groups)
    total = (b.filled * b.weights).sum(-1)
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

    From GDPO (Liu et al., 2026, arXiv:2601.05242). In a sum of raw rewards the one with the largest spread rules;
    here each reward speaks as loudly as its weight. A reward's z-scores are over the rows that it scored. Arguments,
    return value and errors as for `group`.
    """
    b = _Batch(rewards, weights, groups)
    total = torch.zeros_like(b.filled[:, 0])
    for column, known, weight in zip(b.filled.T, b.known.T, b.weights, strict=True):
        z = b.centre(column, known) / (b.group_std(column, std, known) + eps)
        total = total + weight * torch.where(b.is_constant(column, known), 0.0, z)
    centred = total - total[b.scored].mean() if bool(b.scored.any()) else total
    return b.finish(centred / (b.batch_std(total, std) + eps), total, clip)


def zero_std_groups(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    """[P] bool, True for a group (ascending id) whose weighted sums are all equal: it teaches nothing."""
    b = _Batch(rewards, weights, groups, allow_single=True)
    constant = b.is_constant((b.filled * b.weights).sum(-1))
    return torch.ones(b.groups, dtype=torch.bool, device=rewards.device).scatter_reduce(
        0, b.index, constant, reduce="amin"
    )


class _Batch:
    """The reward matrix with its gaps filled, and statistics over scored rows."""

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
                "other, so a group of one can teach nothing: use a group_size of 2 or more."
            )
        self.groups = len(ids)
        self.dtype = rewards.dtype if rewards.is_floating_point() else torch.get_default_dtype()
        r = rewards.double()
        self.known = ~r.isnan()  # [B, R]
        self.weights = weights.to(r)
        self.scored = self.known.any(-1)  # [B]
        self.filled = torch.zeros_like(r)  # [B, R]
        for k, (column, known) in enumerate(zip(r.T, self.known.T, strict=True)):
            overall = column[known].mean() if bool(known.any()) else 0.0  # of no weight: centring takes it out again
            group = torch.where(self.count(known) > 0, self.mean(column, known), overall)
            self.filled[:, k] = torch.where(known, column, group)

    def _group_sum(self, x: Tensor) -> Tensor:
        """[B] -> [P]"""
        return torch.zeros(self.groups, dtype=x.dtype, device=x.device).index_add(0, self.index, x)

    def count(self, rows: Tensor) -> Tensor:
        """How many of `rows` [B] each row's group has: [B]."""
        return self._group_sum(rows.double())[self.index]

    def mean(self, x: Tensor, rows: Tensor) -> Tensor:
        """The mean of x [B] over the `rows` of each row's group, 0 where there are none: [B]."""
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
        """The std of x [B] over all scored rows: a scalar, 0 where fewer than two are scored."""
        x = x[self.scored]
        return x.std(correction=_degrees(std)) if len(x) > 1 else x.new_zeros(())

    def is_constant(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """[B] True where the `rows` of the row's group have the same x, to the last bits of fp64."""
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
        quiet = ~self.scored | self.is_constant(total)
        advantages = torch.where(quiet, 0.0, advantages)
        if clip is not None:
            if not clip > 0:
                raise UsageError(f"Advantage clip must be above 0, or None for no clip, got {clip}.")
            advantages = advantages.clamp(-clip, clip)
        return advantages.to(self.dtype)


def _degrees(std: Std) -> int:
    if std not in ("unbiased", "biased"):
        raise UsageError(f"Advantage std must be 'unbiased' or 'biased', got {std!r}.")
    return 1 if std == "unbiased" else 0
