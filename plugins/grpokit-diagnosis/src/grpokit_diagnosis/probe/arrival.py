"""What of an update never arrives in the weights: swallowed by Adam's epsilon, by clipping, or by rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpokit_diagnosis.probe.rebuilt import Rebuilt


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """Shares of an update by AdamW; with another optimizer, all of it arrives.

    Attributes:
        swallowed: of the numbers with a gradient, those whose update epsilon at least halves; NaN if none is known.
        passed: of the update's size, what epsilon lets through.
        passed_unclipped: the same if gradients had not been clipped.
        rounded: of the update's size, what the weights have not taken up.
        in_16_bits: whether every weight fits into 16 bits, although its type has more.
    """

    swallowed: float
    passed: float
    passed_unclipped: float
    rounded: float
    in_16_bits: bool


def arrival(run: Rebuilt, start: Sequence[Tensor], change: Sequence[Tensor], *, clipped: float) -> Arrival:
    """What has become of the latest update.

    Args:
        run: whose optimizer has made the update.
        start: the weights before it.
        change: of each parameter, in the update's step.
        clipped: by how much the gradients were shortened: 1 not at all, 2 by half.
    """
    trainer = run.trainer
    epsilon = trainer.adam_epsilon
    numbers = small = 0
    free = passed = passed_unclipped = lost = 0.0
    for parameter, moved in zip(trainer.updates.parameters, change, strict=True):
        state = trainer.updates.optimizer.state.get(parameter, {})
        if "exp_avg_sq" not in state:
            continue
        steps = float(state["step"])
        size = (state["exp_avg_sq"] / (1 - trainer.adam_beta2**steps)).sqrt()
        moving = size > 0
        size = size[moving]
        mean = (state["exp_avg"][moving] / (1 - trainer.adam_beta1**steps)).abs()
        update = mean / (size + epsilon)
        numbers += len(size)
        small += int((size <= epsilon).sum())
        free += float((mean / size).sum())
        passed += float(update.sum())
        passed_unclipped += float((mean / (size + epsilon / clipped)).sum())
        lost += float(update[moved[moving] == 0].sum())
    return Arrival(
        swallowed=small / numbers if numbers else math.nan,
        passed=passed / free if free else 1.0,
        passed_unclipped=passed_unclipped / free if free else 1.0,
        rounded=lost / passed if passed else 0.0,
        in_16_bits=all(_fits_16_bits(old + moved) for old, moved in zip(start, change, strict=True)),
    )


def _fits_16_bits(weights: Tensor) -> bool:
    """Whether the numbers are those of bfloat16 or float16."""
    return any(bool((weights == weights.to(low)).all()) for low in (torch.bfloat16, torch.float16))
