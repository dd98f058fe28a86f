"""What the objectives on noised copies share."""

from __future__ import annotations

import torch
from torch import Tensor

from grpokit.types import Decisions


def velocity_error(view: Decisions, copies: Decisions, mask: Tensor) -> Tensor:
    """v - (e - x0) of each copy: [b, t, D], and 0 where nothing was decided.

    Args:
        view: whose means are the predicted x0.
        copies: the same decisions, with the finished samples as targets.
        mask: [b, t] bool.
    """
    assert view.mean is not None
    assert copies.target is not None
    assert copies.v_coef is not None
    dimensions = [1] * (view.mean.ndim - 2)
    decided = mask.reshape(*mask.shape, *dimensions)
    coefficient = torch.where(decided, copies.v_coef, 1.0)
    return torch.where(decided, (view.mean - copies.target) / coefficient, 0.0).flatten(2)
