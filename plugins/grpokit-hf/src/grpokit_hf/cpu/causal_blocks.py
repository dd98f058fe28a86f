"""Causal attention on a CPU, a block of queries at a time.

torch's kernel multiplies every query by every key and then hides what lies ahead. A block of queries needs the keys up
to its last one only, so blocks save up to half of the work, and nearly all of it under a short window.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

QUERIES = 96  # of a block: fewer make products slow, more multiply by keys that are hidden

_FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def apply_to(query: Tensor, value: Tensor) -> bool:
    """Whether `attention` is for these: fp32 on a CPU, more than one block, and torch has the kernel."""
    ours = query.device.type == "cpu" and query.dtype == torch.float32
    fits = query.shape[2] > QUERIES and query.shape[-1] == value.shape[-1]
    return ours and fits and hasattr(torch.ops.aten, _FLASH)


def attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None = None) -> Tensor:
    """Attention in which the last query sees all keys, the one before it all but the last, and so on.

    Args:
        query: [B, H, T, D].
        key, value: [B, K, S, D] with S >= T; each serves H / K heads.
        scale: factor of the scores.
        window: how many keys a query sees at most; None for all.

    Returns:
        [B, H, T, D].
    """
    result: Tensor = _Attention.apply(query, key, value, scale, window)  # type: ignore[no-untyped-call]
    return result


def _blocks(queries: int, keys: int, window: int | None) -> Iterator[tuple[slice, slice, Tensor]]:
    """For each block its queries, the keys that they see, and the scores' summands [t, s]: 0, or -inf for hidden."""
    for start in range(0, queries, QUERIES):
        rows = slice(start, min(start + QUERIES, queries))
        last = torch.arange(rows.start, rows.stop)[:, None] + keys - queries  # the last key that each query sees
        first = 0 if window is None else max(0, int(last[0]) - window + 1)
        columns = slice(first, int(last[-1]) + 1)
        place = torch.arange(columns.start, columns.stop)
        hidden = place > last
        if window is not None:
            hidden |= place <= last - window
        yield rows, columns, torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


def for_each_head(query: Tensor, *shared: Tensor) -> tuple[Tensor, ...]:
    """Keys and values [B, K, S, D], each repeated for the heads of query [B, H, T, D] that share it: [B, H, S, D]."""
    times = query.shape[1] // shared[0].shape[1]
    return shared if times == 1 else tuple(x.repeat_interleave(times, 1) for x in shared)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        flash = getattr(torch.ops.aten, _FLASH)
        shared, (key, value) = (key, value), for_each_head(query, key, value)
        batch, heads, queries, width = query.shape
        output = query.new_empty(batch, queries, heads, width).transpose(1, 2)  # a token's heads side by side
        log_sum = query.new_empty(batch, queries, heads).transpose(1, 2)
        for rows, seen, mask in _blocks(queries, key.shape[2], window):
            q, k, v = query[:, :, rows], key[:, :, seen], value[:, :, seen]
            output[:, :, rows], log_sum[:, :, rows] = flash(q, k, v, attn_mask=mask, scale=scale)
        ctx.save_for_backward(query, *shared, output, log_sum)
        ctx.scale, ctx.window = scale, window
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, *shared, output, log_sum = ctx.saved_tensors
        key, value = for_each_head(query, *shared)
        backward = getattr(torch.ops.aten, _FLASH + "_backward")
        for_query = torch.empty_like(query)
        for_key, for_value = torch.zeros_like(key), torch.zeros_like(value)
        blocks = _blocks(query.shape[2], key.shape[2], ctx.window)
        for rows, seen, mask in blocks:
            for_query[:, :, rows], to_key, to_value = backward(
                gradient[:, :, rows],
                query[:, :, rows],
                key[:, :, seen],
                value[:, :, seen],
                output[:, :, rows],
                log_sum[:, :, rows],
                0.0,  # dropout
                False,  # the mask says what is causal
                attn_mask=mask,
                scale=ctx.scale,
            )
            for_key[:, :, seen] += to_key
            for_value[:, :, seen] += to_value
        heads = shared[0].shape[1]
        if heads < query.shape[1]:
            for_key = for_key.unflatten(1, (heads, -1)).sum(2)
            for_value = for_value.unflatten(1, (heads, -1)).sum(2)
        return for_query, for_key, for_value, None, None
