"""The optimizers that `trainer.optimizer` names: PyTorch's AdamW, and those of bitsandbytes that keep 8 bits.

The two averages of a weight take two bytes in place of eight, and two scales of four bytes come with every 256 weights.
Embeddings keep float32, as do parameters of fewer than 4,096 weights: most rows of an embedding get no gradient in an
update, and a mean square that was rounded to 0 would then let weights jump.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from grpokit.errors import require
from grpokit.settings import TrainerSettings

_AVERAGES = ("state1", "state2")  # as bitsandbytes calls them


def optimizer_of(
    parameters: Mapping[str, nn.Parameter],
    modules: Mapping[str, nn.Module],
    settings: TrainerSettings,
    device: torch.device,
    *,
    scaled: bool,
    sharded: bool,
) -> torch.optim.Optimizer:
    """The optimizer that the settings name.

    Args:
        parameters: what it changes, by name.
        modules: that the parameters are of.
        settings: its kind and its numbers.
        device: where the parameters are.
        scaled: whether a loss scaler decides about its updates.
        sharded: whether several processes hold some of the parameters together.

    Raises:
        UsageError: bitsandbytes is not installed.
    """
    options: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": (settings.adam_beta1, settings.adam_beta2),
        "eps": settings.adam_epsilon,
        "weight_decay": settings.weight_decay,
    }
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(
            parameters.items(),
            # Not with a loss scaler: a fused optimizer skips an update itself, so nobody could count those. Not on a
            # CPU, where it rounds in another way.
            fused=True if device.type == "cuda" and not scaled and not sharded else None,
            foreach=False if sharded else None,  # which cannot mix sharded weights and whole ones
            **options,
        )
    require("bitsandbytes", least="0.50", what=f"trainer.optimizer '{settings.optimizer}'")  # 0.49 has none for a CPU
    from bitsandbytes.optim import AdamW8bit, PagedAdamW8bit

    paged = settings.optimizer == "paged_adamw_8bit" and device.type == "cuda"  # a CPU has nowhere to page to
    optimizer: Any = (PagedAdamW8bit if paged else AdamW8bit)(parameters.values(), **options)
    inside = [part for module in modules.values() for part in module.modules()]
    for p in {part.weight for part in inside if isinstance(part, nn.Embedding)} & {*parameters.values()}:
        buffers = {key: optimizer.get_state_buffer(p, dtype=torch.float32) for key in _AVERAGES}
        optimizer.state[p] = {"step": 0, **buffers}
    return optimizer  # type: ignore[no-any-return]


def load_optimizer(optimizer: Any, moments: Mapping[int, Mapping[str, Any]]) -> None:
    """Replace an optimizer's state; `moments` holds that of each parameter by the parameter's place."""
    if not hasattr(optimizer, "get_state_buffer"):  # which those of bitsandbytes have
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        return
    (group,) = optimizer.param_groups
    optimizer.state.clear()
    for i, entries in moments.items():
        p, own = group["params"][i], dict(entries)
        for key, x in entries.items():
            if key in _AVERAGES:  # in paged memory again, which their own load_state_dict gives up
                own[key] = optimizer.get_state_buffer(p, dtype=x.dtype).copy_(x)
            elif isinstance(x, Tensor):
                own[key] = x.to(p.device)
        optimizer.state[p] = own


def learning_rate(update: int, *, peak: float, schedule: str, warmup: int, total: int) -> float:
    """The rate of the update with this index, from 0, of `total`: it rises to `peak` over the first `warmup` updates.

    Then it is "constant", or falls to 0 at the end: "linear" or "cosine".

    >>> [round(learning_rate(i, peak=1.0, schedule="cosine", warmup=2, total=6), 3) for i in (0, 1, 2, 4, 6)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    >>> [learning_rate(i, peak=1.0, schedule="linear", warmup=2, total=6) for i in (0, 1, 2, 3, 6)]
    [0.5, 1.0, 1.0, 0.75, 0.0]
    """
    rate = peak * min(1.0, (update + 1) / max(1, warmup))
    progress = min(1.0, max(0, update - warmup) / max(1, total - warmup))
    if schedule == "linear":
        rate *= 1 - progress
    elif schedule == "cosine":
        rate *= (1 + math.cos(math.pi * progress)) / 2
    return rate
