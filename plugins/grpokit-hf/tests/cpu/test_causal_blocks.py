"""Attention in blocks of queries against a table of all scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grpokit_hf.cpu import causal_blocks
from grpokit_hf.tokens.packed_attention import Rules, causal_attention

B, H, D = 2, 4, 8


def tensors(queries: int, keys: int, kv: int) -> tuple[Tensor, ...]:
    """Query, key, value, and the gradient of the output; a query's heads lie side by side, as in a model."""
    generator = torch.Generator().manual_seed(0)

    def made(length: int, heads: int) -> Tensor:
        return torch.randn(B, length, heads, D, generator=generator).transpose(1, 2).requires_grad_()

    return made(queries, H), made(keys, kv), made(keys, kv), made(queries, H).detach()


def table(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    """The same in fp64, by the formula."""
    query, key, value = query.double(), *(x.double().repeat_interleave(H // x.shape[1], 1) for x in (key, value))
    last = torch.arange(query.shape[2])[:, None] + key.shape[2] - query.shape[2]
    place = torch.arange(key.shape[2])
    hidden = (place > last) | (place <= last - (window or key.shape[2]))
    return (query @ key.transpose(-1, -2) * 0.3).masked_fill(hidden, -torch.inf).softmax(-1) @ value


@pytest.mark.parametrize("kv", [4, 2])
@pytest.mark.parametrize("window", [None, 1, 40, 150])
@pytest.mark.parametrize(("queries", "keys"), [(97, 97), (192, 192), (200, 230), (100, 400)])
def test_values_and_gradients_are_those_of_the_table(queries: int, keys: int, window: int | None, kv: int) -> None:
    query, key, value, gradient = tensors(queries, keys, kv)
    want = table(query, key, value, window)
    have = causal_attention(query, key, value, Rules(scale=0.3, window=window))
    assert "_Attention" in type(have.grad_fn).__name__
    assert torch.allclose(have, want.float(), rtol=1e-5, atol=1e-6)
    leaves = query, key, value
    for got, wanted in zip(
        torch.autograd.grad(have, leaves, gradient), torch.autograd.grad(want, leaves, gradient.double()), strict=True
    ):
        assert (got - wanted).norm() <= 1e-6 * wanted.norm() + 1e-5


@pytest.mark.parametrize(
    ("window", "multiplied"), [(None, 96 * 126 + 96 * 222 + 8 * 230), (40, 96 * 126 + 96 * 135 + 8 * 47)]
)
def test_a_block_is_multiplied_by_the_keys_that_it_sees(window: int | None, multiplied: int) -> None:
    blocks = list(causal_blocks._blocks(200, 230, window))
    assert sum(mask.numel() for _, _, mask in blocks) == multiplied
    for rows, seen, mask in blocks:
        assert mask.shape == (rows.stop - rows.start, seen.stop - seen.start)


def test_others_are_left_to_torch() -> None:
    """Short ones, other types, and values of another width."""
    x = torch.zeros(1, 1, 97, 4)
    assert causal_blocks.apply_to(x, x)
    assert not causal_blocks.apply_to(x[:, :, :96], x)
    assert not causal_blocks.apply_to(x.double(), x.double())
    assert not causal_blocks.apply_to(x, x[..., :2])
