"""How a batch is cut into what memory holds, and how the pieces add up again.

A rollout may be drawn in several calls and joined. For the loss, rows are cut into micro-batches that keep groups
together, decisions into the policy's step slices. A loss that sums over decisions needs nothing more. One that ties a
row's decisions together is differentiated by the decisions first (`leaves`, `gradients`); those derivatives are then
constants that slices can be weighed with.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpokit.errors import RunError
from grpokit.sampling import STREAMS, permutation
from grpokit.types import Rollout, Seeds, Steps, Trace


def minibatch_rows(groups: Tensor, count: int, *, key: Sequence[int]) -> list[Tensor]:
    """Share whole groups out over the `count` optimizer steps of one pass, in an order that depends on `key` alone.

    Args:
        groups: [B] group ids, in any order.
        count: how many optimizer steps; it divides the number of groups.
        key: seed, step and pass.

    Returns:
        Row indices per optimizer step.
    """
    ids = groups.unique()
    order = list(range(len(ids))) if count == 1 else permutation(len(ids), STREAMS["minibatch"], *key)
    share = len(ids) // count
    parts = [ids[order[i : i + share]] for i in range(0, len(ids), share)]
    return [torch.isin(groups, part).nonzero()[:, 0] for part in parts]


def micro_batches(groups: Tensor, size: int) -> list[Tensor]:
    """Cut rows into pieces of at most `size`, keeping the rows of a group together where they fit.

    Args:
        groups: [B] group ids, in any order.
        size: the most rows of a piece; a larger group is cut into pieces of its own.

    Returns:
        Row indices per piece.

    >>> [p.tolist() for p in micro_batches(torch.tensor([0, 0, 0, 1, 1, 1]), 4)]
    [[0, 1, 2], [3, 4, 5]]
    """
    pieces: list[list[int]] = [[]]
    for group in groups.unique():
        rows = (groups == group).nonzero()[:, 0].tolist()
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            if len(pieces[-1]) + len(part) > size:
                pieces.append([])
            pieces[-1].extend(part)
    return [torch.tensor(piece, device=groups.device) for piece in pieces if piece]


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Prompts and samples that are drawn in one call of a policy."""

    prompts: slice
    group_size: int
    seeds: Seeds


def draws(seeds: Seeds, group_size: int, size: int) -> list[Draw]:
    """Cut a rollout into calls of at most `size` rows: whole groups where they fit, else parts of one group.

    Args:
        seeds: of P prompts and B = P * G rows.
        group_size: G.
        size: the most rows of a call.
    """
    prompts, at_once, share = len(seeds.group), max(1, size // group_size), min(size, group_size)
    found = []
    for start in range(0, prompts, at_once):
        part = slice(start, min(start + at_once, prompts))
        rows = range(part.start * group_size, part.stop * group_size)
        for first in range(0, group_size, share):
            count = min(share, group_size - first)
            piece = rows if count == group_size else rows[first : first + count]
            found.append(
                Draw(
                    prompts=part,
                    group_size=count,
                    seeds=Seeds(
                        row=seeds.row[piece.start : piece.stop],
                        group=seeds.group[part],
                        group_ids=seeds.group_ids[part],
                    ),
                )
            )
    return found


def join(parts: Sequence[Rollout]) -> Rollout:
    """Rollouts of the same prompts' draws -> one rollout, in the order of the parts.

    Where parts differ in length, log-probs, mask and trace are filled up with zeros at the end of axis 1, under the
    mask (see `Trace` for what that asks of a policy). A group that several parts share keeps its first entry in
    `trace.per_group`.

    Raises:
        RunError: traces that differ in another way.
    """
    if len(parts) == 1:
        return parts[0]
    groups = torch.cat([part.groups for part in parts])
    own = [part.groups.unique() for part in parts]  # ascending, as a part's per_group is
    ids = torch.cat(own)
    first = torch.stack([(ids == group).nonzero()[0, 0] for group in ids.unique()])
    return Rollout(
        samples=[*itertools.chain.from_iterable(part.samples for part in parts)],
        groups=groups,
        old=Steps(
            logprobs=_stack([part.old.logprobs for part in parts], "old.logprobs"),
            **{
                name: _stack([getattr(part.old, name) for part in parts], f"old.{name}")
                for name in ("entropy", "mean", "std")
                if getattr(parts[0].old, name) is not None
            },
        ),
        mask=_stack([part.mask for part in parts], "mask"),
        max_steps=max(part.max_steps for part in parts),
        action_dims=parts[0].action_dims,
        trace=Trace(
            per_row=_joined([part.trace.per_row for part in parts], "per_row"),
            per_group={
                name: x[first.to(x.device)]
                for name, x in _joined([part.trace.per_group for part in parts], "per_group").items()
            },
        ),
    )


def _joined(traces: Sequence[Mapping[str, Tensor]], kind: str) -> dict[str, Tensor]:
    return {name: _stack([trace[name] for trace in traces], f"trace.{kind}['{name}']") for name in traces[0]}


def _stack(parts: Sequence[Tensor], what: str) -> Tensor:
    """Concatenate along rows; a shorter axis 1 is filled up with zeros."""
    if len({x.shape[1:] for x in parts}) > 1:
        if len({(x.ndim, *x.shape[2:]) for x in parts}) > 1 or parts[0].ndim < 2:
            raise RunError(
                f"A rollout that was drawn in pieces cannot be joined: {what} has the shapes "
                f"{', '.join(str(tuple(x.shape)) for x in parts)}; only axis 1, the decisions, may differ. Let the "
                "policy fill it up to one size, or raise trainer.rollout_batch_size."
            )
        longest = max(x.shape[1] for x in parts)
        parts = [torch.cat([x, x.new_zeros(len(x), longest - x.shape[1], *x.shape[2:])], dim=1) for x in parts]
    return torch.cat(list(parts))


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Rows of a rollout with all that their loss needs."""

    rollout: Rollout
    old: Steps | None  # None: the new log-probs themselves, detached
    advantages: Tensor  # [b] or [b, T]
    reference: Steps | None
    weights: Tensor  # [b, T], normalised over the optimizer step that the rows belong to

    def select(self, rows: Tensor) -> Piece:
        """Return the same for some of its rows (int64 indices)."""
        return Piece(
            rollout=self.rollout.select(rows),
            old=self.old and self.old.cut(rows),
            advantages=self.advantages[rows],
            reference=self.reference and self.reference.cut(rows),
            weights=self.weights[rows],
        )


def concatenate(views: Sequence[Steps]) -> Steps:
    """Consecutive slices of decisions -> one view of all of them."""

    def join(name: str) -> Tensor | None:
        parts = [getattr(view, name) for view in views]
        return None if parts[0] is None else torch.cat(parts, dim=1)

    logprobs = join("logprobs")
    assert logprobs is not None
    return Steps(logprobs=logprobs, entropy=join("entropy"), mean=join("mean"), std=join("std"))


_DIFFERENTIABLE = ("logprobs", "entropy", "mean", "std")


def leaves(steps: Steps) -> Steps:
    """The same numbers as leaves of a new graph."""
    fresh = steps.detach()
    for name in _DIFFERENTIABLE:
        x = getattr(fresh, name)
        if x is not None:
            x.requires_grad_()
    return fresh


def gradients(value: Tensor, of: Steps) -> dict[str, Tensor]:
    """The derivative of `value` by every leaf that it depends on, by name."""
    names = [name for name in _DIFFERENTIABLE if getattr(of, name) is not None]
    slopes = torch.autograd.grad(value, [getattr(of, name) for name in names], allow_unused=True)
    return {name: slope for name, slope in zip(names, slopes, strict=True) if slope is not None}
