"""Statistics of one number per row inside groups; rows may have any order.

Every function takes the rows that count, [B] bool, so a row without a number never enters.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from grpokit.errors import UsageError

Std: TypeAlias = Literal["unbiased", "biased"]

_ROUNDING = 1e-9  # (0.1 + 0.1 + 0.1) / 3 is not 0.1


class Groups:
    """Which rows belong together.

    Args:
        ids: [B] int64 group ids.

    Attributes:
        ids (Tensor): [P] the groups, ascending.
        index (Tensor): [B] each row's place among them.
        sizes (Tensor): [P] the number of rows in each.
    """

    def __init__(self, ids: Tensor) -> None:
        self.ids, self.index, self.sizes = ids.unique(return_inverse=True, return_counts=True)

    def _sum(self, x: Tensor) -> Tensor:
        """[B, ...] -> [P, ...]"""
        zeros = x.new_zeros(len(self.ids), *x.shape[1:])
        return zeros.index_add(0, self.index, x)

    def count(self, rows: Tensor) -> Tensor:
        """The number of `rows` in each row's group: [B, ...]."""
        return self._sum(rows.double())[self.index]

    def mean(self, x: Tensor, rows: Tensor) -> Tensor:
        """The mean of x [B, ...] over the `rows` of the same shape in each row's group, 0 if there are none."""
        total = self._sum(torch.where(rows, x, 0.0))[self.index]
        return total / self.count(rows).clamp(min=1)

    def centre(self, x: Tensor, rows: Tensor) -> Tensor:
        """x [B, ...] minus the mean of its group's `rows`."""
        return x - self.mean(x, rows)

    def std(self, x: Tensor, rows: Tensor, std: Std) -> Tensor:
        """The std of x [B] over the `rows` of each row's group: [B]."""
        square = self.centre(x, rows).square()
        total = self._sum(torch.where(rows, square, 0.0))[self.index]
        degrees = self.count(rows) - _correction(std)
        return (total / degrees.clamp(min=1)).sqrt()

    def max(self, x: Tensor, rows: Tensor) -> Tensor:
        """The largest x [B, ...] over the `rows` of the same shape in each row's group, -inf if there are none."""
        shape = (len(self.ids), *x.shape[1:])
        lowest = x.new_full(shape, -torch.inf)
        counted = torch.where(rows, x, -torch.inf)
        singles = [1] * (x.ndim - 1)
        index = self.index.reshape(-1, *singles).expand_as(x)
        largest = lowest.scatter_reduce(0, index, counted, reduce="amax")
        return largest[self.index]

    def is_constant(self, x: Tensor, rows: Tensor) -> Tensor:
        """[B] True where the `rows` of the row's group have the same x, to the rounding of fp64."""
        low, high = -self.max(-x, rows), self.max(x, rows)
        largest = torch.maximum(low.abs(), high.abs()).nan_to_num(posinf=0.0)
        return high - low <= 8 * torch.finfo(x.dtype).eps * largest


def batch_std(x: Tensor, rows: Tensor, std: Std) -> Tensor:
    """The std of x [B] over all `rows`: a scalar, 0 if there are fewer than two."""
    x = x[rows]
    if len(x) < 2:
        return x.new_zeros(())
    return x.std(correction=_correction(std))


def _correction(std: Std) -> int:
    if std not in ("unbiased", "biased"):
        raise UsageError(f"Advantage std must be 'unbiased' or 'biased', got {std!r}.")
    return 1 if std == "unbiased" else 0


def groups_without_advantage(advantages: Tensor, groups: Tensor) -> Tensor:
    """Which groups teach nothing: [P] bool, True for a group (ascending id) whose advantages are all 0 to rounding.

    For most functions these are the groups with equal totals; `gdpo` looks at each reward on its own.

    Args:
        advantages: [B] or [B, T].
        groups: [B] int64 group ids.

    >>> groups_without_advantage(torch.tensor([0.0, 0.0, -1.0, 1.0]), torch.tensor([7, 7, 9, 9]))
    tensor([ True, False])
    """
    ids, index = groups.unique(return_inverse=True)
    zero = advantages.abs() < _ROUNDING
    zero_rows = zero.reshape(len(groups), -1).all(-1)  # [B] or [B, T] -> [B]
    zero_groups = torch.ones_like(ids, dtype=torch.bool)
    return zero_groups.scatter_reduce(0, index, zero_rows.to(ids.device), reduce="amin")
