"""Tensors of any shape survive the trace's way of keeping, padding, concatenating and cutting them."""

from __future__ import annotations

import torch

from grpokit_hf.tokens.ragged import flattened, restored


def test_what_comes_back_is_what_was_kept() -> None:
    tensors = [torch.arange(12.0).view(2, 3, 2), torch.zeros(0), torch.ones(1, 4), torch.tensor([5.0])]
    entries = flattened("pixels", tensors)
    assert {name: tuple(x.shape) for name, x in entries.items()} == {"pixels": (4, 12), "pixels.shape": (4, 6)}
    wider = {**entries, "pixels": torch.nn.functional.pad(entries["pixels"], (0, 5))}  # as beside a longer call
    for kept in (entries, wider):
        assert all(torch.equal(a, b) for a, b in zip(restored("pixels", kept), tensors, strict=True))
    cut = {name: x[[2, 0]] for name, x in entries.items()}
    assert [tuple(x.shape) for x in restored("pixels", cut)] == [(1, 4), (2, 3, 2)]


def test_the_type_stays_where_there_is_nothing() -> None:
    entries = flattened("grid", [torch.zeros(0, dtype=torch.int64)] * 2)
    assert entries["grid"].dtype == torch.int64
    assert [x.numel() for x in restored("grid", entries)] == [0, 0]
