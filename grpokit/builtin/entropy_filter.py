"""Leaves decisions of low entropy out of the policy loss: only the top share of an optimizer step's decisions teaches.

From "Beyond the 80/20 rule" (Wang et al., 2025, arXiv:2506.01939). The threshold is a fact of all decisions of the
step, so it is found before any cutting, like the weights. A decision is left out by an advantage of 0, so the KL and
the entropy bonus still act on it, and the normaliser still counts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpokit import Batch, Modifier, Team, TrainerSetup
from grpokit.settings import Share, check_settings

_ROUNDING = 1e-5  # of fp32: equal distributions scored in other batches must fall on the same side


@dataclass(eq=False, kw_only=True)
class EntropyFilter(Modifier):
    """Sets the advantage of all decisions but those of the highest entropy to 0.

    Attributes:
        share: of an optimizer step's decisions that keep their advantage; 0 keeps only those of the highest entropy.
    """

    share: Share = 0.2
    needs_entropy = True

    def __post_init__(self) -> None:
        check_settings(self)

    def begin(self, setup: TrainerSetup) -> None:
        """Keep the processes, whose decisions are compared."""
        self._team = setup.team

    def minibatch(self, batch: Batch) -> Batch:
        """The batch of one optimizer step with an advantage of 0 for all but the top decisions."""
        assert batch.entropy is not None  # it is needed, so it is there
        top = top_entropy(batch.entropy, batch.mask, self.share, self._team)
        advantages = batch.advantages[:, None] if batch.advantages.ndim == 1 else batch.advantages  # [b] -> [b, 1]
        return replace(batch, advantages=torch.where(top, advantages, 0.0))


def top_entropy(entropy: Tensor, mask: Tensor, share: float, team: Team) -> Tensor:
    """Which decisions [b, t] have an entropy at or above the quantile 1 - `share` of all processes' decisions.

    Equal entropies are kept or left out together.

    >>> top_entropy(torch.tensor([[0.1, 2.0], [1.0, 9.9]]), torch.tensor([[True, True], [True, False]]), 0.5, Team())
    tensor([[False,  True],
            [ True, False]])
    """
    decided = torch.cat(team.gather(entropy[mask].cpu())).double()
    if not len(decided):
        return mask
    rank = math.ceil(round((1 - share) * (len(decided) - 1), 6))  # the smallest one at or above the quantile
    threshold = decided.kthvalue(rank + 1).values.to(entropy.device)
    return mask & (entropy >= threshold - _ROUNDING * threshold.abs().clamp(min=1))
