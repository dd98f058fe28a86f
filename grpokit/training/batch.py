"""Cuts the rows of a rollout into optimizer steps, and those into micro-batches that fit into memory.

An optimizer step takes whole groups. A micro-batch keeps the rows of a group together if they fit, or puts rows of
about the same length together. The loss is a sum over decisions with fixed normalisers, so any cutting gives the same
gradient. Everything here is decided on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import compress
from operator import add

import torch
from torch import Tensor

from grpokit.knobs import Reduction
from grpokit.policy import CutBy
from grpokit.sampling import STREAMS, permutation
from grpokit.training.all_rows import AllRows
from grpokit.training.rollout_calls import on
from grpokit.types import Decisions, Rollout, row_lengths


def minibatch_rows(groups: Tensor, count: int, *, key: Sequence[int]) -> list[Tensor]:
    """Distribute whole groups over the `count` optimizer steps of one pass, in an order that depends only on `key`.

    Args:
        groups: [B] group ids on the CPU, in any order.
        count: the number of optimizer steps; it divides the number of groups.
        key: seed, step and pass.

    Returns:
        Row indices per optimizer step.
    """
    ids = groups.unique()  # ascending
    order = range(len(ids)) if count == 1 else permutation(len(ids), STREAMS["minibatch"], *key)
    steps = ids[torch.tensor(order)].split(len(ids) // count)
    return [torch.isin(groups, step).nonzero()[:, 0] for step in steps]


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
        by: as `Policy.cut_by`; "length" begins with the longest rows.
        packed: whether a row takes its own length in a pass; else it takes that of the longest row.

    >>> groups, mask = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([[True, True], [True, False]]).repeat(3, 1)
    >>> [(cut.rows.tolist(), cut.slices) for cut in cuts(groups, mask, [slice(0, 2)], Limit(rows=4))]
    [([0, 1, 2], (slice(0, 2, None),)), ([3, 4, 5], (slice(0, 2, None),))]
    >>> limit = Limit(rows=3)
    >>> [(cut.rows.tolist(), cut.slices) for cut in cuts(groups, mask, [slice(0, 2)], limit, by="length")]
    [([0, 2, 4], (slice(0, 2, None),)), ([1, 3, 5], (slice(0, 1, None),))]
    """
    starts, stops = torch.tensor([s.start for s in slices]), torch.tensor([s.stop for s in slices])
    widths = (torch.minimum(row_lengths(mask)[:, None], stops) - starts).clamp(min=0)  # [B, slices]
    loads = [_Load([row], passes, packed) for row, passes in enumerate(widths.tolist())]
    lengths: list[int] = row_lengths(mask).tolist()

    def cut(load: _Load) -> Cut:
        end = max(lengths[row] for row in load.rows)
        decided: list[bool] = mask[load.rows].any(0).tolist()  # [b, T] -> [T]
        short = [slice(s.start, min(s.stop, end)) for s in slices]
        some = [any(decided[s]) for s in short]
        return Cut(
            rows=torch.tensor(load.rows),
            slices=tuple(compress(short, some)),
            passes=tuple(compress(load.positions, some)),
        )

    def by_length(rows: Iterable[int]) -> list[_Load]:
        return _together([loads[row] for row in sorted(rows, key=lambda row: -lengths[row])], limit)

    if by == "length":
        return [cut(load) for load in by_length(range(len(mask)))]
    parts: list[_Load] = []
    for rows in _rows_of_groups(groups):
        group = reduce(_Load.with_other, (loads[row] for row in rows))
        parts += [group] if group.within(limit) else by_length(rows)
    return [cut(load) for load in (parts if by == "one group" else _together(parts, limit))]


@dataclass(frozen=True)
class _Load:
    """Some rows, and how long the longest of them is in each slice; where they are packed, all of them together."""

    rows: list[int]
    widths: list[int]
    packed: bool

    def with_other(self, other: _Load) -> _Load:
        """Both together."""
        widths = map(add if self.packed else max, self.widths, other.widths)
        return _Load([*self.rows, *other.rows], list(widths), self.packed)

    @property
    def positions(self) -> list[int]:
        """How many positions each slice's pass scores."""
        return self.widths if self.packed else [len(self.rows) * width for width in self.widths]

    def within(self, limit: Limit) -> bool:
        """Whether a micro-batch may be as large; a single row always may."""
        short = limit.tokens is None or len(self.rows) == 1 or max(self.positions) <= limit.tokens
        return short and len(self.rows) <= limit.rows


def _together(parts: Iterable[_Load], limit: Limit) -> list[_Load]:
    """Put each part into the last micro-batch if it fits there, else into a new one."""
    batches: list[_Load] = []
    for part in parts:
        both = batches[-1].with_other(part) if batches else part
        if batches and both.within(limit):
            batches[-1] = both
        else:
            batches.append(part)
    return batches


def _rows_of_groups(groups: Tensor) -> list[list[int]]:
    """The rows of each group, in the order of the ids."""
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(row)
    return [rows for _, rows in sorted(members.items())]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of a rollout with what their loss needs, as far as it is known.

    Attributes:
        rollout: the rows, b of them.
        numbers: [b] int64 on the CPU, the rows' numbers among this process's of the step.
        mask: [b, T] bool, the decisions that count.
        advantages: [b] or [b, T].
        weights: [b, T], normalised over the optimizer step that the rows belong to.
        old: the old log-probs [b, T]; None means those of the first pass, detached.
        reference: the reference's log-probs [b, T]; None: not needed, or scored beside each slice.
        entropy: [b, T] that the entropy filter compares, or None.
        fresh: whether no weight has changed since the step began.
        filler: a row that changes nothing, where all processes must make the same passes; else None.
    """

    rollout: Rollout
    numbers: Tensor
    mask: Tensor
    advantages: Tensor
    weights: Tensor
    old: Decisions | None = None
    reference: Decisions | None = None
    entropy: Tensor | None = None
    fresh: bool = True
    filler: Batch | None = None

    @classmethod
    def of(cls, rollout: Rollout) -> Batch:
        """A rollout of which nothing more is known: no decision has an advantage or a weight."""
        scores = rollout.old.logprobs
        return cls(
            rollout=rollout,
            numbers=torch.arange(rollout.rows),
            mask=rollout.mask,
            advantages=scores.new_zeros(rollout.rows),
            weights=torch.zeros_like(scores, dtype=torch.float64),
        )

    def select(self, rows: Tensor) -> Batch:
        """Return the batch of some of its rows (int64 indices on the CPU)."""
        index = rows.to(self.weights.device, non_blocking=True)
        return replace(
            self,
            rollout=self.rollout.select(rows),
            numbers=self.numbers[rows],
            mask=self.mask[index],
            advantages=self.advantages[index],
            weights=self.weights[index],
            old=self.old and self.old.select(index),
            reference=self.reference and self.reference.select(index),
            entropy=None if self.entropy is None else self.entropy[index],
        )

    def to(self, device: torch.device | str) -> Batch:
        """Return the same batch on `device`."""
        tensors = {name: getattr(self, name).to(device) for name in ("mask", "advantages", "weights")}
        old, reference = self.old and self.old.to(device), self.reference and self.reference.to(device)
        return replace(self, rollout=on(self.rollout, device), old=old, reference=reference, **tensors)


def minibatches(
    batch: Batch, rows: AllRows, *, updates: int, count: int, key: Sequence[int], reduction: Reduction
) -> Iterator[Batch]:
    """The batches of the optimizer steps that learn from one rollout, with weights that are fixed before any cutting.

    Args:
        batch: all rows of this process.
        rows: those of all processes.
        updates: the number of passes over all rows.
        count: the number of optimizer steps of a pass.
        key: seed and step.
        reduction: the kind of mean.
    """
    share = rows.share
    for update in range(updates):
        for step in minibatch_rows(rows.groups, count, key=(*key, update)):
            local = step[(step >= share.start) & (step < share.stop)] - share.start
            part = batch if len(local) == batch.rollout.rows else batch.select(local)
            weights = reduction_weights(
                part.mask,
                reduction,
                rows=len(step),
                decisions=int(rows.decided[step].sum()),
                max_decisions=part.rollout.max_decisions,
            )
            yield replace(part, weights=weights)


def reduction_weights(mask: Tensor, reduction: Reduction, *, rows: int, decisions: int, max_decisions: int) -> Tensor:
    """The constant factor of each decision's loss in the sum over the batch: [b, t] fp64, 0 under the mask.

    Args:
        mask: [b, t] of all rows of one optimizer step, so that the normaliser does not depend on slices.
        reduction: "sequence_mean": mean over rows of each row's mean (GRPO); "token_mean": mean over all decisions
            (DAPO); "fixed_length": sum / (rows * max_decisions) (Dr. GRPO); "sequence_sum": mean over rows of each
            row's sum (LUSPO).
        rows, decisions: how many the optimizer step has in all processes.
        max_decisions: the most decisions a row can have.
    """
    m = mask.to(torch.float64)
    if reduction == "sequence_mean":
        return m / (m.sum(-1, keepdim=True).clamp(min=1) * max(rows, 1))
    normalisers = {"token_mean": decisions, "fixed_length": rows * max_decisions, "sequence_sum": rows}
    return m / max(normalisers[reduction], 1)
