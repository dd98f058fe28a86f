"""Cuts the rows of a rollout into optimizer steps, and those into micro-batches that fit into memory.

An optimizer step takes whole groups. A micro-batch keeps the rows of a group together if they fit, or puts rows of
about the same length together. The loss is a sum over decisions with fixed normalisers, so any cutting gives the same
gradient. Everything here is decided on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress

import torch
from torch import Tensor

from grpokit.knobs import Reduction
from grpokit.policy import CutBy
from grpokit.sampling import STREAMS, permutation
from grpokit.training.all_rows import AllRows
from grpokit.training.rollout_calls import on
from grpokit.types import Decisions, Rollout, row_lengths


def minibatch_rows(groups: Tensor, count: int, *, key: Sequence[int]) -> list[Tensor]:
    """The rows of each of the `count` optimizer steps of one pass: groups [B] shuffled by seed, step and pass."""
    ids = groups.unique()  # ascending
    order = range(len(ids)) if count == 1 else permutation(len(ids), STREAMS["minibatch"], *key)
    steps = ids[torch.tensor(order)].split(len(ids) // count)
    return [torch.isin(groups, step).nonzero()[:, 0] for step in steps]


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
    starts, stops = torch.tensor([s.start for s in slices]), torch.tensor([s.stop for s in slices])
    ends = row_lengths(mask)  # [B]
    widths = (torch.minimum(ends[:, None], stops) - starts).clamp(min=0)  # [B, slices]
    lengths: list[int] = ends.tolist()

    def passes(rows: list[int]) -> list[int]:
        own = widths[rows]  # [b, slices]
        scored: list[int] = (own.sum(0) if packed else len(rows) * own.amax(0)).tolist()
        return scored

    def fits(rows: list[int]) -> bool:
        most = None if len(rows) == 1 else limit.tokens
        return len(rows) <= limit.rows and (most is None or max(passes(rows)) <= most)

    def by_length(rows: Iterable[int]) -> list[list[int]]:
        return _together(([row] for row in sorted(rows, key=lambda row: -lengths[row])), fits)

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
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(row)
    whole = [members[group] for group in sorted(members)]
    parts = [part for rows in whole for part in ([rows] if fits(rows) else by_length(rows))]
    return [cut(rows) for rows in (parts if by == "one group" else _together(parts, fits))]


def _together(parts: Iterable[list[int]], fits: Callable[[list[int]], bool]) -> list[list[int]]:
    """Put each part into the last micro-batch if it fits there, else into a new one."""
    batches: list[list[int]] = []
    for part in parts:
        if batches and fits([*batches[-1], *part]):
            batches[-1] += part
        else:
            batches.append(list(part))
    return batches


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of a rollout with what their loss needs, as far as it is known."""

    rollout: Rollout
    numbers: Tensor  # [b] int64 on the CPU: the rows' numbers among this process's of the step
    mask: Tensor  # [b, T] bool, the decisions that count
    advantages: Tensor  # [b] or [b, T]
    weights: Tensor  # [b, T], normalised over the optimizer step that the rows belong to
    old: Decisions | None = None  # [b, T] log-probs; None: those of the first pass, detached
    reference: Decisions | None = None  # [b, T] log-probs; None: not needed, or scored beside each slice
    entropy: Tensor | None = None  # [b, T] that the entropy filter compares
    before_updates: bool = True  # no weight has changed since the step began
    filler: Batch | None = None  # a row that changes nothing, where all processes must make the same passes

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
        """The batch of some of its rows (int64 indices on the CPU)."""
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
        """The same batch on `device`."""
        tensors = {name: getattr(self, name).to(device) for name in ("mask", "advantages", "weights")}
        old, reference = self.old and self.old.to(device), self.reference and self.reference.to(device)
        return replace(self, rollout=on(self.rollout, device), old=old, reference=reference, **tensors)


def minibatches(
    batch: Batch, rows: AllRows, *, updates: int, count: int, key: Sequence[int], reduction: Reduction
) -> Iterator[Batch]:
    """The batches of the optimizer steps that learn from one rollout: `updates` passes of `count` steps each.

    `batch` has this process's rows, `rows` facts about those of all. Weights are fixed before any cutting.
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

    The means are those of GRPO ("sequence_mean"), DAPO ("token_mean"), Dr. GRPO ("fixed_length") and LUSPO
    ("sequence_sum"). `rows` and `decisions` are those of the optimizer step in all processes, `max_decisions` the most
    of a row; the mask has whole rows, so that no normaliser depends on slices.
    """
    m = mask.to(torch.float64)
    if reduction == "sequence_mean":
        return m / (m.sum(-1, keepdim=True).clamp(min=1) * max(rows, 1))
    normalisers = {"token_mean": decisions, "fixed_length": rows * max_decisions, "sequence_sum": rows}
    return m / max(normalisers[reduction], 1)
