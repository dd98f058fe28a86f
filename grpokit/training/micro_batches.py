"""Cuts the rows of a rollout into optimizer steps, and those into micro-batches that fit into memory.

An optimizer step takes whole groups. A micro-batch keeps the rows of a group together if they fit, or puts rows of
about the same length together. The loss is a sum over decisions with fixed normalisers, so any cutting gives the same
gradient. Everything here is decided on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpokit.policy import CutBy
from grpokit.sampling import STREAMS, permutation
from grpokit.types import Decisions, Rollout, row_lengths


def minibatch_rows(groups: Tensor, count: int, *, key: Sequence[int], ids: Iterable[int] | None = None) -> list[Tensor]:
    """Distribute whole groups over the `count` optimizer steps of one pass, in an order that depends only on `key`.

    Args:
        groups: [B] group ids on the CPU, in any order.
        count: the number of optimizer steps; it divides the number of groups.
        key: seed, step and pass.
        ids: of the groups of all processes; by default those of `groups`.

    Returns:
        Row indices per optimizer step.
    """
    row_groups = groups.tolist()
    every = sorted(set(row_groups if ids is None else ids))
    order = list(range(len(every))) if count == 1 else permutation(len(every), STREAMS["minibatch"], *key)
    share = len(every) // count
    step_of = {every[i]: place // share for place, i in enumerate(order)}
    steps: list[list[int]] = [[] for _ in range(count)]
    for row, group in enumerate(row_groups):
        steps[step_of[group]].append(row)
    return [torch.tensor(rows, dtype=torch.int64) for rows in steps]


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The most that a micro-batch holds.

    Attributes:
        rows: the most rows.
        tokens: the most positions that one pass scores (decisions and padding), where a single row has no more; None
            sets no such bound.
    """

    rows: int
    tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One micro-batch.

    Attributes:
        rows: [b] int64 row indices on the CPU.
        slices: of decisions, cut short at the last decision of the longest row; one without decisions is left out.
        passes: how many positions each slice's pass scores: decisions, and padding where the policy pads.
    """

    rows: Tensor
    slices: tuple[slice, ...]
    passes: tuple[int, ...]

    @property
    def positions(self) -> int:
        """How many positions are scored in all."""
        return sum(self.passes)

    @property
    def largest_pass(self) -> int:
        """The most positions that are scored together."""
        return max(self.passes, default=0)


def cuts(
    groups: Tensor,
    mask: Tensor,
    slices: Sequence[slice],
    limit: Limit,
    *,
    by: CutBy = "group",
    packed: bool = False,
) -> list[Cut]:
    """Cut rows into micro-batches.

    Args:
        groups: [B] group ids on the CPU, in any order.
        mask: [B, T] bool on the CPU.
        slices: of the T decisions; each is scored in a pass of its own.
        limit: the most that a micro-batch holds.
        by: "group": the rows of a group stay together if they fit. "one group": likewise, but a micro-batch never has
            rows of two groups. "length": rows of about the same length go together, the longest first.
        packed: whether a row takes its own length in a pass; else it takes that of the longest row.

    >>> groups, mask = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([[True, True], [True, False]]).repeat(3, 1)
    >>> [(cut.rows.tolist(), cut.slices) for cut in cuts(groups, mask, [slice(0, 2)], Limit(rows=4))]
    [([0, 1, 2], (slice(0, 2, None),)), ([3, 4, 5], (slice(0, 2, None),))]
    >>> limit = Limit(rows=3)
    >>> [(cut.rows.tolist(), cut.slices) for cut in cuts(groups, mask, [slice(0, 2)], limit, by="length")]
    [([0, 2, 4], (slice(0, 2, None),)), ([1, 3, 5], (slice(0, 1, None),))]
    """
    decided = row_lengths(mask)
    starts, stops = torch.tensor([s.start for s in slices]), torch.tensor([s.stop for s in slices])
    widths = (torch.minimum(decided[:, None], stops) - starts).clamp(min=0)  # [B, slices]
    lengths: list[int] = decided.tolist()

    def fit(count: int, load: Tensor) -> bool:
        """Whether so many rows, of this load, can be one micro-batch."""
        if limit.tokens is None or count == 1:
            return count <= limit.rows
        return count <= limit.rows and int(load.max()) * (1 if packed else count) <= limit.tokens

    def add(batches: list[_Rows], more: _Rows) -> None:
        """Put rows into the last micro-batch if they fit there, else into a new one."""
        if batches:
            last = batches[-1]
            load = last.load + more.load if packed else torch.maximum(last.load, more.load)
            if fit(len(last.rows) + len(more.rows), load):
                last.rows += more.rows
                last.load = load
                return
        batches.append(more)

    def by_length(rows: Iterable[int]) -> list[_Rows]:
        parts: list[_Rows] = []
        for row in sorted(rows, key=lambda row: -lengths[row]):
            add(parts, _Rows([row], widths[row]))
        return parts

    batches = by_length(range(len(lengths))) if by == "length" else []
    if by != "length":
        members: dict[int, list[int]] = {}
        for row, group in enumerate(groups.tolist()):
            members.setdefault(group, []).append(row)
        for _, rows in sorted(members.items()):
            load = widths[rows].sum(0) if packed else widths[rows].amax(0)
            parts = [_Rows(rows, load)] if fit(len(rows), load) else by_length(rows)
            if by == "one group":
                batches += parts
            else:
                for part in parts:
                    add(batches, part)

    def trimmed(batch: _Rows) -> Cut:
        rows = torch.tensor(batch.rows)
        columns: list[bool] = mask[rows].any(0).tolist()  # [b, T] -> [T]
        end = max(lengths[row] for row in rows.tolist())
        short = [slice(s.start, min(s.stop, end)) for s in slices]
        kept = [i for i, s in enumerate(short) if any(columns[s])]
        positions = batch.load * (1 if packed else len(rows))  # [slices]
        return Cut(rows=rows, slices=tuple(short[i] for i in kept), passes=tuple(positions[kept].tolist()))

    return [trimmed(batch) for batch in batches]


@dataclass
class _Rows:
    """Rows on their way into a micro-batch.

    Attributes:
        rows: their indices.
        load: [slices] the positions that they take together in each pass, or of padded rows, the longest one takes.
    """

    rows: list[int]
    load: Tensor


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of a rollout with everything that their loss needs.

    Attributes:
        rollout: the rows, b of them.
        old: the old log-probs [b, T]; None means those of the first pass, detached.
        advantages: [b] or [b, T].
        reference: the reference's log-probs [b, T], or None.
        weights: [b, T], normalised over the optimizer step that the rows belong to.
        fresh: whether no weight has changed since the step began.
    """

    rollout: Rollout
    old: Decisions | None
    advantages: Tensor
    reference: Decisions | None
    weights: Tensor
    fresh: bool

    def select(self, rows: Tensor) -> Batch:
        """Return the batch of some of its rows (int64 indices on the CPU)."""
        here = rows.to(self.weights.device, non_blocking=True)
        return Batch(
            rollout=self.rollout.select(rows),
            old=self.old and self.old.select(here),
            advantages=self.advantages[here],
            reference=self.reference and self.reference.select(here),
            weights=self.weights[here],
            fresh=self.fresh,
        )
