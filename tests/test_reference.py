"""Copies of weights that are frozen, or follow."""

from __future__ import annotations

import torch
from torch import nn

from grpokit import frozen_copy
from grpokit.reference import Twin, _own_buffers


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


def test_buffers_of_shared_layers_stay_where_they_are() -> None:
    """A frozen tower belongs to both; what waits elsewhere is the twin's own."""
    tower, head = nn.BatchNorm1d(3).requires_grad_(False), nn.BatchNorm1d(3)
    live = nn.Sequential(tower, head)
    reference, before = Twin(live, offload=True), [x.data for x in live.buffers()]
    with reference.model() as twin:
        assert twin[0] is tower
        assert twin[1] is not head
        moved = {id(x) for x in _own_buffers(twin, live)}
        assert moved == {id(x) for x in twin[1].buffers()}
    assert all(x.data_ptr() == then.data_ptr() for x, then in zip(live.buffers(), before, strict=True))
