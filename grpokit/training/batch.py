"""Cuts the rows of a rollout into optimizer steps, and those into micro-batches that fit into memory.

An optimizer step takes whole groups. A micro-batch keeps the rows of a group together if they fit, or puts rows of
about the same length together. The loss is a sum over decisions with fixed normalisers, so any cutting gives the same
gradient. Everything here is decided on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from grpokit.errors import UsageError
from grpokit.knobs import Reduction
from grpokit.policy import CutBy
from grpokit.sampling import STREAMS, permutation
from grpokit.training.all_rows import AllRows
from grpokit.training.rollout_calls import on
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
    packing = _Packing(limit, widths, decided.tolist(), packed=packed)
    if by == "length":
        batches = packing.by_length(range(len(mask)))
    else:
        batches = packing.by_group(groups.tolist(), apart=by == "one group")
    return [packing.trimmed(batch, mask, slices) for batch in batches]


@dataclass
class _Rows:
    """Rows on their way into a micro-batch.

    Attributes:
        rows: their indices.
        load: [slices] the positions that they take together in each pass, or of padded rows, the longest one takes.
    """

    rows: list[int]
    load: Tensor


class _Packing:
    """Puts rows together as long as they fit.

    Args:
        limit: the most that a micro-batch holds.
        widths: [B, slices] how many positions each row takes in each pass.
        lengths: of the B rows.
        packed: as in `cuts`.
    """

    def __init__(self, limit: Limit, widths: Tensor, lengths: list[int], *, packed: bool) -> None:
        self.limit, self.widths, self.lengths, self.packed = limit, widths, lengths, packed

    def by_length(self, rows: Iterable[int]) -> list[_Rows]:
        """The longest rows first."""
        parts: list[_Rows] = []
        for row in sorted(rows, key=lambda row: -self.lengths[row]):
            self._add(parts, _Rows([row], self.widths[row]))
        return parts

    def by_group(self, groups: Sequence[int], *, apart: bool) -> list[_Rows]:
        """Whole groups, or parts of one that is too large; if `apart`, never two groups together."""
        members: dict[int, list[int]] = {}
        for row, group in enumerate(groups):
            members.setdefault(group, []).append(row)
        batches: list[_Rows] = []
        for _, rows in sorted(members.items()):
            load = self.widths[rows].sum(0) if self.packed else self.widths[rows].amax(0)
            parts = [_Rows(rows, load)] if self._fit(len(rows), load) else self.by_length(rows)
            if apart:
                batches += parts
            else:
                for part in parts:
                    self._add(batches, part)
        return batches

    def trimmed(self, batch: _Rows, mask: Tensor, slices: Sequence[slice]) -> Cut:
        """The micro-batch, cut short at its longest row, without slices in which nothing is decided."""
        rows = torch.tensor(batch.rows)
        columns: list[bool] = mask[rows].any(0).tolist()  # [b, T] -> [T]
        end = max(self.lengths[row] for row in rows.tolist())
        short = [slice(s.start, min(s.stop, end)) for s in slices]
        kept = [i for i, s in enumerate(short) if any(columns[s])]
        positions = batch.load * (1 if self.packed else len(rows))  # [slices]
        return Cut(rows=rows, slices=tuple(short[i] for i in kept), passes=tuple(positions[kept].tolist()))

    def _fit(self, count: int, load: Tensor) -> bool:
        """Whether so many rows, of this load, can be one micro-batch."""
        if self.limit.tokens is None or count == 1:
            return count <= self.limit.rows
        return count <= self.limit.rows and int(load.max()) * (1 if self.packed else count) <= self.limit.tokens

    def _add(self, batches: list[_Rows], more: _Rows) -> None:
        """Put rows into the last micro-batch if they fit there, else into a new one."""
        if batches:
            last = batches[-1]
            load = last.load + more.load if self.packed else torch.maximum(last.load, more.load)
            if self._fit(len(last.rows) + len(more.rows), load):
                last.rows += more.rows
                last.load = load
                return
        batches.append(more)


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
        here = rows.to(self.weights.device, non_blocking=True)
        return replace(
            self,
            rollout=self.rollout.select(rows),
            numbers=self.numbers[rows],
            mask=self.mask[here],
            advantages=self.advantages[here],
            weights=self.weights[here],
            old=self.old and self.old.select(here),
            reference=self.reference and self.reference.select(here),
            entropy=None if self.entropy is None else self.entropy[here],
        )

    def to(self, device: torch.device | str) -> Batch:
        """Return the same batch on `device`."""
        tensors = {name: getattr(self, name).to(device) for name in ("mask", "advantages", "weights")}
        old, reference = self.old and self.old.to(device), self.reference and self.reference.to(device)
        return replace(self, rollout=on(self.rollout, device), old=old, reference=reference, **tensors)


def minibatches(
    batch: Batch, everyone: AllRows, *, updates: int, count: int, key: Sequence[int], reduction: Reduction
) -> Iterator[Batch]:
    """The batches of the optimizer steps that learn from one rollout, with weights that are fixed before any cutting.

    Args:
        batch: of all rows of this process.
        everyone: the rows of all processes.
        updates: how often all rows are gone through.
        count: the number of optimizer steps in which they are.
        key: seed and step.
        reduction: the kind of mean.
    """
    for update in range(updates):
        parts = (batch.rollout.groups, everyone.groups)
        own, all_rows = (
            minibatch_rows(torch.as_tensor(groups), count, key=(*key, update), ids=everyone.groups) for groups in parts
        )
        for rows, others in zip(own, all_rows, strict=True):
            part = batch if len(rows) == batch.rollout.rows else batch.select(rows)
            weights = reduction_weights(
                part.mask,
                reduction,
                max_decisions=part.rollout.max_decisions,
                rows=len(others),
                decisions=sum(everyone.decided[row] for row in others.tolist()),
            )
            yield replace(part, weights=weights)


def reduction_weights(
    mask: Tensor, reduction: Reduction, *, max_decisions: int, rows: int | None = None, decisions: int | None = None
) -> Tensor:
    """The constant factor of each decision's loss in the sum over the batch: [b, t] fp64, 0 under the mask.

    Args:
        mask: [b, t] of all rows of one optimizer step, so that the normaliser does not depend on slices.
        reduction: "sequence_mean": mean over rows of each row's mean (GRPO); "token_mean": mean over all decisions
            (DAPO); "fixed_length": sum / (rows * max_decisions) (Dr. GRPO); "sequence_sum": mean over rows of each
            row's sum (LUSPO).
        max_decisions: the most decisions a row can have.
        rows: of the optimizer step in all processes; by default those of the mask.
        decisions: of the optimizer step in all processes; by default those of the mask.
    """
    m = mask.to(torch.float64)
    rows = len(m) if rows is None else rows
    if reduction == "sequence_mean":
        return m / (m.sum(-1, keepdim=True).clamp(min=1) * max(rows, 1))
    if reduction == "token_mean":
        return m / (m.sum().clamp(min=1) if decisions is None else max(decisions, 1))
    if reduction == "fixed_length":
        return m / max(rows * max_decisions, 1)
    if reduction == "sequence_sum":
        return m / max(rows, 1)
    raise UsageError(f"The reduction must be one of {', '.join(map(repr, get_args(Reduction)))}, got {reduction!r}.")
