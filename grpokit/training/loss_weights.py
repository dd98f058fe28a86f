"""The weights that make a sum of losses over decisions the loss of the whole batch, however the batch is cut.

They are fixed for all rows of an optimizer step before any cutting, so micro-batches of uneven size and slices of
decisions add up to the whole batch's gradient.
"""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from grpokit.errors import UsageError
from grpokit.knobs import Reduction


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
