"""The rows that an optimizer step learns from, with what their loss needs.

An optimizer step takes whole groups. Which ones is decided on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpokit.objectives import reduction_weights
from grpokit.sampling import STREAMS, permutation
from grpokit.settings import Reduction
from grpokit.training.rollout_parts import AllRows, on
from grpokit.types import Decisions, Rollout


def minibatch_rows(groups: Tensor, count: int, *, key: Sequence[int]) -> list[Tensor]:
    """The rows of each of the `count` optimizer steps of one pass: groups [B] shuffled by seed, step and pass."""
    ids = groups.unique()  # ascending
    if count > 1:
        order = permutation(len(ids), STREAMS["minibatch"], *key)
        ids = ids[torch.tensor(order)]
    steps = ids.split(len(ids) // count)
    return [torch.isin(groups, step).nonzero()[:, 0] for step in steps]


@dataclass(frozen=True, kw_only=True)
class Signal:
    """What each of the B rows of a step teaches, in all processes; on the CPU.

    Attributes:
        advantages: [B], or [B, T] with one for each decision.
        weights: [B] factors of the rows' losses. A row of weight 0 is left out: no pass with gradient scores it, and no
            normaliser counts it.
        kl_weights: [B] factors of the rows' KL.
    """

    advantages: Tensor
    weights: Tensor
    kl_weights: Tensor

    @classmethod
    def of(cls, advantages: Tensor) -> Signal:
        """The signal of rows that all count the same."""
        ones = torch.ones(len(advantages), dtype=torch.float64)
        return cls(advantages=advantages, weights=ones, kl_weights=ones.clone())


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of a rollout with what their loss needs, as far as it is known.

    Attributes:
        rollout: of b rows and T decisions.
        numbers: [b] int64 on the CPU, the rows' places in the `Signal` of the step.
        mask: [b, T] bool, the decisions that count.
        advantages: [b] or [b, T].
        weights: [b, T] factors of the decisions' losses, normalised over the optimizer step that the rows belong to.
        kl_weights: [b] factors of the rows' KL.
        old: [b, T] log-probs; None: those of the first pass, detached.
        reference: [b, T] log-probs; None: not needed, or scored beside each slice.
        entropy: [b, T] of the decisions before any update, if a modifier needs it.
        before_updates: no weight has changed since the step began.
        filler: a row that changes nothing, where all processes must make the same passes.
    """

    rollout: Rollout
    numbers: Tensor
    mask: Tensor
    advantages: Tensor
    weights: Tensor
    kl_weights: Tensor
    old: Decisions | None = None
    reference: Decisions | None = None
    entropy: Tensor | None = None
    before_updates: bool = True
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
            kl_weights=scores.new_ones(rollout.rows),
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
            kl_weights=self.kl_weights[index],
            old=self.old and self.old.select(index),
            reference=self.reference and self.reference.select(index),
            entropy=None if self.entropy is None else self.entropy[index],
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on `device`."""
        names = ("mask", "advantages", "weights", "kl_weights", "old", "reference", "entropy")
        known = [name for name in names if getattr(self, name) is not None]
        moved = {name: getattr(self, name).to(device) for name in known}
        return replace(self, rollout=on(self.rollout, device), **moved)


def minibatches(
    batch: Batch,
    rows: AllRows,
    *,
    row_weights: Tensor,
    updates: int,
    count: int,
    key: Sequence[int],
    reduction: Reduction,
) -> Iterator[Batch]:
    """The batches of the optimizer steps that learn from one rollout: `updates` passes of `count` steps each.

    `batch` has this process's rows, `rows` facts about those of all, and `row_weights` [B] theirs. Weights are fixed
    before any cutting.
    """
    share = rows.share
    for update in range(updates):
        for step in minibatch_rows(rows.groups, count, key=(*key, update)):
            step = step[row_weights[step] != 0]
            own = step[(step >= share.start) & (step < share.stop)]
            local = own - share.start
            part = batch if len(local) == batch.rollout.rows else batch.select(local)
            weights = reduction_weights(
                part.mask,
                reduction,
                rows=len(step),
                decisions=int(rows.decided[step].sum()),
                max_decisions=part.rollout.max_decisions,
            )
            factors = row_weights[own].to(weights.device, non_blocking=True)[:, None]  # [b] -> [b, 1]
            yield replace(part, weights=weights * factors)
