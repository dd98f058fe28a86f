"""Leaves decisions of low entropy out of the policy loss: only the top share of an optimizer step's decisions teaches.

From "Beyond the 80/20 rule" (Wang et al., 2025, arXiv:2506.01939). The threshold is a fact of all decisions of the
step, so it is found before any cutting, like the weights. A decision is left out by an advantage of 0, so the KL and
the entropy bonus still act on it, and the normaliser still counts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from grpokit.errors import UsageError
from grpokit.processes.team import Team
from grpokit.training.batch import Batch
from grpokit.types import Decisions, Rollout

_ROUNDING = 1e-5  # of fp32: equal distributions scored in other batches must fall on the same side


def rollout_entropy(rollout: Rollout, score: Callable[[], Decisions]) -> Tensor:
    """[B, T] the entropy of each decision's distribution: the sampler's where it stored it, else from a pass.

    Args:
        rollout: of all rows.
        score: scores all its decisions again, with entropy.

    Raises:
        UsageError: the policy gives no entropy.
    """
    entropy = rollout.old.entropy
    if not rollout.rows:
        return rollout.old.logprobs
    if entropy is None:
        entropy = score().entropy
    if entropy is None:
        raise UsageError(
            "top_entropy_quantile is below 1, but this policy's logprobs() gives no entropy. Set it to 1, or let "
            "logprobs() return Decisions with entropy [b, t]."
        )
    return entropy


def keep_top_entropy(batch: Batch, share: float, team: Team) -> Batch:
    """The batch of one optimizer step with an advantage of 0 for all but the top `share` of its decisions.

    Args:
        batch: all its rows of this process; without entropies it stays as it is.
        share: of the decisions that teach.
        team: the processes, whose decisions are compared together.
    """
    if batch.entropy is None:
        return batch
    mask, entropy = batch.mask, batch.entropy
    others = torch.cat(team.gather(entropy[mask].cpu()))
    advantages = batch.advantages[:, None] if batch.advantages.ndim == 1 else batch.advantages  # [B] -> [B, 1]
    return replace(batch, advantages=torch.where(top_entropy(entropy, mask, share, others), advantages, 0.0))


def top_entropy(entropy: Tensor, mask: Tensor, share: float, among: Tensor | None = None) -> Tensor:
    """Which decisions have an entropy at or above the quantile 1 - `share` of all: [B, T] bool.

    Args:
        entropy: [B, T].
        mask: [B, T] bool.
        share: 0 keeps the highest entropy only. Equal entropies are kept or left out together.
        among: the entropies of all decisions; by default those under the mask.

    >>> top_entropy(torch.tensor([[0.1, 2.0], [1.0, 9.9]]), torch.tensor([[True, True], [True, False]]), 0.5)
    tensor([[False,  True],
            [ True, False]])
    """
    decided = (entropy[mask] if among is None else among).double()
    if not len(decided):
        return mask
    rank = math.ceil(round((1 - share) * (len(decided) - 1), 6))  # the smallest one at or above the quantile
    threshold = decided.kthvalue(rank + 1).values.to(entropy.device)
    return mask & (entropy >= threshold - _ROUNDING * threshold.abs().clamp(min=1))
