"""Cuts rows into micro-batches that fit into memory.

A micro-batch keeps the rows of a group together if they fit, or puts rows of about the same length together. The loss
is a sum over decisions with fixed normalisers, so any cutting gives the same gradient. All of it happens on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor

from grpokit.policy import CutBy
from grpokit.types import row_lengths


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The most that a micro-batch holds; a single row always fits."""

    rows: int
    tokens: int | None = None  # positions that one pass scores: decisions and padding


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One micro-batch."""

    rows: Tensor  # [b] int64 on the CPU
    slices: tuple[slice, ...]  # up to the last decision of the longest row; without those that decide nothing
    passes: tuple[int, ...]  # how many positions each slice's pass scores: decisions, and padding if the policy pads


def cuts(
    groups: Tensor,
    mask: Tensor,
    slices: Sequence[slice],
    limit: Limit,
    *,
    by: CutBy = "group",
    packed: bool = False,
) -> list[Cut]:
    """Cut rows into micro-batches: groups [B] and mask [B, T], both on the CPU.

    Each slice of the T decisions is scored in a pass of its own. There a row takes as much as the longest of its
    micro-batch, or its own length where rows are `packed`. `by` is `Policy.cut_by`; "length" begins with the longest.

    >>> groups, mask = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([[True, True], [True, False]]).repeat(3, 1)
    >>> [(cut.rows.tolist(), cut.slices) for cut in cuts(groups, mask, [slice(0, 2)], Limit(rows=4))]
    [([0, 1, 2], (slice(0, 2, None),)), ([3, 4, 5], (slice(0, 2, None),))]
    >>> limit = Limit(rows=3)
    >>> [(cut.rows.tolist(), cut.slices) for cut in cuts(groups, mask, [slice(0, 2)], limit, by="length")]
    [([0, 2, 4], (slice(0, 2, None),)), ([1, 3, 5], (slice(0, 1, None),))]
    """
    ends = row_lengths(mask)  # [B]
    widths = _widths(ends, slices)
    lengths: list[int] = ends.tolist()

    def passes(rows: list[int]) -> list[int]:
        own = widths[rows]  # [b, slices]
        scored = own.sum(0) if packed else len(rows) * own.amax(0)
        return scored.tolist()

    def fits(rows: list[int]) -> bool:
        if len(rows) > limit.rows:
            return False
        if len(rows) == 1 or limit.tokens is None:
            return True
        return max(passes(rows)) <= limit.tokens

    def by_length(rows: Iterable[int]) -> list[list[int]]:
        longest_first = sorted(rows, key=lambda row: -lengths[row])
        return _together([[row] for row in longest_first], fits)

    def cut(rows: list[int]) -> Cut:
        end = max(lengths[row] for row in rows)
        decided: list[bool] = mask[rows].any(0).tolist()  # [b, T] -> [T]
        short = [slice(s.start, min(s.stop, end)) for s in slices]
        some = [any(decided[s]) for s in short]
        return Cut(
            rows=torch.tensor(rows),
            slices=tuple(compress(short, some)),
            passes=tuple(compress(passes(rows), some)),
        )

    if by == "length":
        return [cut(rows) for rows in by_length(range(len(mask)))]
    parts: list[list[int]] = []
    for rows in _members(groups):
        parts += [rows] if fits(rows) else by_length(rows)
    if by != "one group":
        parts = _together(parts, fits)
    return [cut(rows) for rows in parts]


def _widths(lengths: Tensor, slices: Sequence[slice]) -> Tensor:
    """How many decisions of each row lie in each slice: [B] -> [B, slices]."""
    starts = torch.tensor([s.start for s in slices])
    stops = torch.tensor([s.stop for s in slices])
    return (torch.minimum(lengths[:, None], stops) - starts).clamp(min=0)


def _members(groups: Tensor) -> list[list[int]]:
    """The rows of each group, in the order of their ids."""
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(row)
    return [members[group] for group in sorted(members)]


def _together(parts: Iterable[list[int]], fits: Callable[[list[int]], bool]) -> list[list[int]]:
    """Put each part into the last micro-batch if it fits there, else into a new one."""
    batches: list[list[int]] = []
    for part in parts:
        if batches and fits([*batches[-1], *part]):
            batches[-1] += part
        else:
            batches.append(list(part))
    return batches
