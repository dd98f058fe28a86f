"""Cuts the rows of a rollout into optimizer steps, and those into micro-batches that fit into memory.

An optimizer step takes whole groups. A micro-batch keeps the rows of a group together if they fit. The loss is a sum
over decisions with fixed normalisers, so any cutting gives the same gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpokit.sampling import STREAMS, permutation
from grpokit.types import Decisions, Rollout


def minibatch_rows(groups: Tensor, count: int, *, key: Sequence[int]) -> list[Tensor]:
    """Distribute whole groups over the `count` optimizer steps of one pass, in an order that depends only on `key`.

    Args:
        groups: [B] group ids, in any order.
        count: the number of optimizer steps; it divides the number of groups.
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
    """Cut rows into micro-batches of at most `size`; the rows of a group stay together if they fit.

    Args:
        groups: [B] group ids, in any order.
        size: the most rows of a micro-batch; a larger group gets several of its own.

    Returns:
        Row indices per micro-batch.

    >>> [rows.tolist() for rows in micro_batches(torch.tensor([0, 0, 0, 1, 1, 1]), 4)]
    [[0, 1, 2], [3, 4, 5]]
    """
    batches: list[list[int]] = [[]]
    for group in groups.unique():
        rows = (groups == group).nonzero()[:, 0].tolist()
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            if len(batches[-1]) + len(part) > size:
                batches.append([])
            batches[-1].extend(part)
    return [torch.tensor(rows, device=groups.device) for rows in batches if rows]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of a rollout with everything that their loss needs.

    Attributes:
        rollout: the rows, b of them.
        old: the old log-probs [b, T]; None means those of the first pass, detached.
        advantages: [b] or [b, T].
        reference: the reference's log-probs [b, T], or None.
        weights: [b, T], normalised over the optimizer step that the rows belong to.
    """

    rollout: Rollout
    old: Decisions | None
    advantages: Tensor
    reference: Decisions | None
    weights: Tensor

    def select(self, rows: Tensor) -> Batch:
        """Return the batch of some of its rows (int64 indices)."""
        return Batch(
            rollout=self.rollout.select(rows),
            old=self.old and self.old.select(rows),
            advantages=self.advantages[rows],
            reference=self.reference and self.reference.select(rows),
            weights=self.weights[rows],
        )
