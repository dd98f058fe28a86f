"""Quicker layers of DoRA while weights stay as they are.

A DoRA layer divides by the norm of the adapted weight, W + B A. peft forms that weight in every call, which costs far
more than the layer itself where a few rows are multiplied. Its own `DoraCaching` would keep the B A of all layers, in
float32 more than the whole base, and would keep it beyond the context. Here only the quotient of magnitude and norm
is kept, one number per output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora.dora import DoraLinearLayer
from peft.utils.integrations import dequantize_module_weight
from torch import Tensor, nn

from grpokit_hf.models.forwards import replaced_forwards


@contextmanager
def kept_norms(model: nn.Module) -> Iterator[None]:
    """Inside the context, a layer of DoRA computes the norm of its weight once. The weights must not change there."""
    layers = [m for m in model.modules() if type(m) is DoraLinearLayer]
    with replaced_forwards((layer, _with_kept_norm(layer)) for layer in layers):
        yield


def _with_kept_norm(layer: Any) -> Callable[..., Tensor]:
    """The layer's own forward pass in eval mode, with the same operations in the same order."""
    scales: list[Tensor] = []

    def forward(x: Tensor, **given: Any) -> Tensor:
        down, up = given["lora_A"], given["lora_B"]
        base, scaling = given["base_layer"], given["scaling"]
        if not scales:
            one = torch.eye(down.in_features, dtype=down.weight.dtype, device=x.device)
            weight = dequantize_module_weight(base).to(x.dtype)
            product = up(down(one)).T.to(x.dtype)
            norm = layer.get_weight_norm(weight=weight, lora_weight=product, scaling=scaling)
            scales.append((layer.weight / norm).view(1, -1).detach())
        plain = given["base_result"] if base.bias is None else given["base_result"] - base.bias
        scale = scales[0]
        result: Tensor = (scale - 1) * plain + scale * up(down(x)) * scaling
        return result

    return forward
