"""Importance weights for samples whose sampler is not the policy that is trained.

An engine with its own kernels, or weights of some updates ago, draw from another distribution q than the policy pi of
the training forward pass. The weight pi / q makes the expected gradient the policy's own. It multiplies the surrogate,
never the KL.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpokit.knobs import Correction


def correction_weights(correction: Correction, old: Tensor, sampled: Tensor, mask: Tensor) -> Tensor:
    """The factor of each decision's surrogate: [b, t], without gradient, 1 under the mask.

    "truncate" is truncated importance sampling (Ionides, "Truncated importance sampling", 2008), "mask" is IcePop (Ling
    Team, 2025, arXiv:2510.18855).

    Args:
        correction: how, and in which bounds.
        old: [b, t] log-probs of the training forward pass before the update.
        sampled: [b, t] log-probs that the sampler stated.
        mask: [b, t] bool; for a sequence's weight all decisions of its rows.
    """
    difference = torch.where(mask, old - sampled, 0.0).detach()
    if correction.per == "sequence":
        difference = difference.sum(-1, keepdim=True).expand_as(difference)  # [b, t] -> [b, 1] -> [b, t]
    weights = difference.clamp(-20.0, 20.0).exp()
    if correction.how == "truncate":
        weights = weights.clamp(correction.low, correction.high)
    else:
        weights = torch.where((weights >= correction.low) & (weights <= correction.high), weights, 0.0)
    return torch.where(mask, weights, 1.0)
