"""Weights as decoding wants them: adapters merged, and on a CPU transposed.

Decoding multiplies a few rows by every weight once per token. A low-rank adapter would cost two more products each
time, and a CPU's matrix product of few rows is quicker with the transposed weight. Both are copies that live as long
as a rollout; the model's parameters are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def rollout_weights(model: nn.Module, *, transpose: bool | None = None) -> Iterator[None]:
    """Inside the context, the model's linear layers compute with copies that are quick for few rows.

    Args:
        model: any module; only plain linear layers and peft's LoRA layers around them are changed.
        transpose: None for what the device is quicker with.
    """
    device = next(model.parameters()).device
    transpose = device.type == "cpu" if transpose is None else transpose
    changed: list[nn.Module] = []
    try:
        for module in [*_linear_layers(model)]:
            merged = _merged(module)
            if merged is None and not transpose:
                continue
            base: Any = module if merged is None else module.base_layer
            weight = base.weight.detach() if merged is None else merged
            module.forward = _product(weight, base.bias, transpose)  # an attribute, which hides the class's method
            changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward


def _linear_layers(model: nn.Module) -> Iterator[nn.Module]:
    """The outermost linear layers: a LoRA layer, but not what it wraps."""
    for child in model.children():
        if type(child) is nn.Linear or _merged(child) is not None:
            yield child
        else:
            yield from _linear_layers(child)


def _merged(module: Any) -> Tensor | None:
    """The weight of a LoRA layer with its adapters added; None for anything else."""
    adapters = getattr(module, "active_adapters", None)
    base = getattr(module, "base_layer", None)
    if not adapters or type(base) is not nn.Linear or module.disable_adapters or module.merged:
        return None
    if any(module.use_dora.get(name, False) for name in adapters if name in module.lora_A):
        return None
    deltas = [module.get_delta_weight(name) for name in adapters if name in module.lora_A]
    with torch.no_grad():
        weight: Tensor = base.weight.detach()
        return weight + torch.stack([delta.to(weight) for delta in deltas]).sum(0)


def _product(weight: Tensor, bias: Tensor | None, transpose: bool) -> Callable[[Tensor], Tensor]:
    if not transpose:
        return lambda x: nn.functional.linear(x, weight, bias)
    columns = weight.t().contiguous()  # [in, out]
    if bias is None:
        return lambda x: x @ columns
    return lambda x: torch.addmm(bias, x.reshape(-1, x.shape[-1]), columns).view(*x.shape[:-1], -1)
