"""Frozen copies."""

from __future__ import annotations

import torch
from torch import nn

from grpokit import frozen_copy


def test_a_copy_may_have_fewer_digits() -> None:
    module = nn.BatchNorm1d(2)
    same, half = frozen_copy(module), frozen_copy(module, dtype=torch.bfloat16)
    assert (same.weight.dtype, half.weight.dtype, half.running_mean.dtype) == (
        torch.float32,
        torch.bfloat16,
        torch.bfloat16,
    )
    assert half.num_batches_tracked.dtype == torch.int64  # no number with digits
    assert not half.weight.requires_grad
    assert not half.training
    assert module.weight.requires_grad
    assert module.training
    assert module.weight.dtype == torch.float32
    assert half.weight.data_ptr() != module.weight.data_ptr()
