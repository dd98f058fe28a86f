"""How the rows of an optimizer step are cut into micro-batches that memory holds.

Whole groups go to the optimizer steps of a pass, and stay together in a micro-batch where they fit. A loss that sums
over decisions needs nothing more, since its normalisers are fixed before any cutting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpokit.sampling import STREAMS, permutation
from grpokit.types import Decisions, Rollout


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
    """Cut rows into micro-batches of at most `size`, keeping the rows of a group together where they fit.

    Args:
        groups: [B] group ids, in any order.
        size: the most rows of a micro-batch; a larger group is cut into micro-batches of its own.

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
    """Rows of a rollout with all that their loss needs.

    Attributes:
        rollout: the rows, b of them.
        old: the old log-probs [b, T]; None: those of the first pass, detached.
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
        """Return the same for some of its rows (int64 indices)."""
        return Batch(
            rollout=self.rollout.select(rows),
            old=self.old and self.old.select(rows),
            advantages=self.advantages[rows],
            reference=self.reference and self.reference.select(rows),
            weights=self.weights[rows],
        )
