"""How far predictions of finished samples are off, for objectives on noised copies."""

from __future__ import annotations

import torch
from torch import Tensor

from grpokit.errors import UsageError
from grpokit.types import Decisions


def check_copies(new: Decisions, *, objective: str) -> None:
    """Refuse decisions that are not noised copies.

    Raises:
        UsageError: tokens, or denoising steps.
    """
    if new.target is None:
        raise UsageError(
            f"objective '{objective}' compares errors of predictions, but this policy's decisions are tokens or "
            "denoising steps. Give a flow policy matching, such as policy.matching={times: 4}, or take grpo."
        )


def velocity_errors(view: Decisions, target: Tensor, v_coef: Tensor, mask: Tensor) -> Tensor:
    """v - (e - x0) of each copy: [b, t, D], 0 under the mask.

    Args:
        view: with the predicted x0 as mean [b, t, ...].
        target: [b, t, ...], the finished samples x0.
        v_coef: [b, t, 1, ...], the derivative of a prediction by its velocity.
        mask: [b, t].
    """
    assert view.mean is not None
    decided = mask.reshape(*mask.shape, *[1] * (view.mean.ndim - 2))
    coefficient = torch.where(decided, v_coef, 1.0)
    return torch.where(decided, (view.mean - target) / coefficient, 0.0).flatten(2)
