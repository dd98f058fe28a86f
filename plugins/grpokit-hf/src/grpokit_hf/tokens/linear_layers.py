"""A model's linear layers with quicker products: one way for decoding, one for scoring.

Decoding multiplies a few rows by every weight once per token. A low-rank adapter would cost two more products each
time, and a CPU is quicker with a weight that was laid out for few rows. So decoding uses copies, with adapters merged,
that live as long as a rollout. Scoring multiplies many rows, with gradient, by the weights themselves. The model's
parameters are not touched in either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from grpokit_hf.cpu.products import by_onednn, linear, packed, sum_of_outer
from grpokit_hf.models.forwards import Forward, flat, replaced_forwards
from grpokit_hf.tokens.joint_layers import joint_forwards
from grpokit_hf.tokens.lean_layers import fused_norms, lean_forwards


@contextmanager
def for_decoding(
    model: nn.Module, *, rows: int = 32, copies: bool | None = None, merged: bool = True
) -> Iterator[None]:
    """Inside the context, the model's linear layers compute with copies that are quick for few rows, without gradient.

    Args:
        model: any module; only plain linear layers and peft's LoRA layers around them are changed.
        rows: about how many rows are multiplied at a time.
        copies: whether plain layers get a copy as well; None where the device is quicker with one. Under autocast all
            do, in its type.
        merged: whether adapted layers get a copy with the adapter added. Without, they compute as they are, with two
            products more, and take no memory.
    """
    device = next(model.parameters()).device.type
    copies = device == "cpu" if copies is None else copies
    cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    layers = {module: adapters for module, adapters in _outermost(model) if merged or not adapters}

    def product(together: Sequence[nn.Module]) -> Forward:
        return _few_rows([(layer, layers[layer]) for layer in together], rows)

    joint = list(joint_forwards(model, layers, product)) if copies and cast is None else []
    inside = {child for module, _ in joint for child in module.children()}  # no copy of their own

    def forwards() -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
        for module, adapters in layers.items():
            if cast is not None:  # once, and not in every call
                yield module, _plain(*_weight(module, adapters, dtype=cast))
            elif copies and module not in inside:
                yield module, flat(product([module]))
            elif adapters and not copies:
                yield module, _plain(*_weight(module, adapters))
        yield from joint
        if device == "cuda" and cast is None:
            yield from fused_norms(model)

    with replaced_forwards(forwards()):
        yield


class Casts:
    """Copies of frozen weights in autocast's type, made when they are first needed.

    Autocast itself keeps the casts of weights that train only, and only until it is left. Under an adapter it would
    cast the whole base in every call. The copies need half as much memory as the weights; `clear` gives it back.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Tensor, int, Tensor]] = {}  # by id: the weight, its version, its copy

    def __call__(self, weight: Tensor) -> Tensor:
        """A frozen weight in the type of the autocast here; any other tensor as it is."""
        kind = weight.device.type
        if weight.requires_grad or not weight.is_floating_point() or not torch.is_autocast_enabled(kind):
            return weight
        dtype = torch.get_autocast_dtype(kind)
        own, version, copy = self._copies.get(id(weight), (None, 0, weight))
        current = own is weight and version == weight._version
        if not current or copy.dtype != dtype:
            copy = weight.to(dtype)
            self._copies[id(weight)] = weight, weight._version, copy
        return copy

    def clear(self) -> None:
        """Let all copies go."""
        self._copies.clear()


@contextmanager
def for_scoring(model: nn.Module, *, lean: bool = True, casts: Casts | None = None) -> Iterator[None]:
    """Inside the context, scoring is quicker and keeps less for the backward pass, with the same numbers.

    Linear layers use the quicker of the CPU's libraries. Where torch's own products are the quickest, as on a GPU, they
    stay. Under autocast only frozen weights are others: `casts` has them.

    Args:
        model: any module.
        lean: whether norms and gated MLPs are those of `lean_layers`.
        casts: live longer than the context; None: autocast casts frozen weights in every call.
    """
    linears = (m for m in model.modules() if type(m) is nn.Linear)
    if torch.is_autocast_enabled(next(model.parameters()).device.type):
        cast: list[tuple[nn.Module, Forward]] = []
        if casts is not None:
            cast = [(m, _cast(m, casts)) for m in linears if not m.weight.requires_grad]
        with replaced_forwards(cast):
            yield
        return
    quick = ((m, _scored(m)) for m in linears if by_onednn(m.weight))
    with replaced_forwards(chain(quick, lean_forwards(model) if lean else ())):
        yield


def _outermost(model: nn.Module) -> Iterator[tuple[Any, list[str]]]:
    """The outermost linear layers: a LoRA layer with its adapters' names, but not what it wraps, and plain ones."""
    for child in model.children():
        adapters = _adapters(child)
        if type(child) is nn.Linear or adapters:
            yield child, adapters
        else:
            yield from _outermost(child)


def _adapters(module: Any) -> list[str]:
    """The active adapters of a LoRA layer around a plain one; none for anything else, and for DoRA."""
    base, down = getattr(module, "base_layer", None), getattr(module, "lora_A", None)
    if down is None or type(base) is not nn.Linear or module.disable_adapters or module.merged:
        return []
    names = [name for name in module.active_adapters if name in down]
    return [] if any(module.use_dora.get(name, False) for name in names) else names


def _merged(module: Any, adapters: Sequence[str], dtype: torch.dtype) -> Tensor:
    """The weight of a LoRA layer with its adapters added, in a type."""
    with torch.no_grad():
        weight: Tensor = module.base_layer.weight.detach().to(dtype)
        total = weight.to(torch.promote_types(dtype, torch.float32), copy=True)
        for name in adapters:
            total += module.get_delta_weight(name).to(total)
        return total if total.dtype == dtype else _rounded_by_chance(total, dtype)


def _rounded_by_chance(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x fp32 in a narrower type, up or down with the odds that keep the mean. The same x always gives the same bits.

    Rounded to nearest, nearly all that an adapter learns in its first steps would be lost, since it is far below half
    a digit of a weight.
    """
    digits = int(torch.finfo(dtype).eps * 2**23)  # of fp32, in one of the type's
    generator = torch.Generator(x.device).manual_seed(0)
    chance = torch.randint(digits, x.shape, generator=generator, dtype=torch.int32, device=x.device)
    bits = chance.add_(x.view(torch.int32)).bitwise_and_(-digits)
    return bits.view(torch.float32).to(dtype)


def _plain(weight: Tensor, bias: Tensor | None) -> Forward:
    return lambda x: nn.functional.linear(x, weight, bias)


def _weight(module: Any, adapters: Sequence[str], *, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor | None]:
    """The weight of a linear layer with its adapters added, in its own type or another, and its bias."""
    base: Any = module.base_layer if adapters else module
    dtype = dtype or base.weight.dtype
    weight = _merged(module, adapters, dtype) if adapters else base.weight.detach().to(dtype)
    return weight, base.bias


def _few_rows(layers: Sequence[tuple[nn.Module, Sequence[str]]], rows: int) -> Forward:
    """x [n, K] -> the layers' outputs side by side, with a copy of their weights that is made when it is first used."""

    def multiply(x: Tensor) -> Tensor:
        if not made:
            weights, biases = zip(*(_weight(*layer) for layer in layers), strict=True)
            bias = None
            if any(part is not None for part in biases):
                bias = torch.cat(list(map(_bias_or_zeros, weights, biases)))
            weight = weights[0] if len(weights) == 1 else torch.cat(weights)
            made.append(packed(weight, bias, rows=rows))
        return made[0](x)

    made: list[Forward] = []
    return multiply


def _bias_or_zeros(weight: Tensor, bias: Tensor | None) -> Tensor:
    return weight.new_zeros(len(weight)) if bias is None else bias


def _cast(layer: nn.Linear, casts: Casts) -> Forward:
    def forward(x: Tensor) -> Tensor:
        bias = None if layer.bias is None else casts(layer.bias)
        return nn.functional.linear(x, casts(layer.weight), bias)

    return forward


def _scored(layer: nn.Linear) -> Forward:
    def forward(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        y: Tensor = _Linear.apply(rows, layer.weight, layer.bias)  # type: ignore[no-untyped-call]
        return y.view(*x.shape[:-1], layer.out_features)

    return forward


class _Linear(torch.autograd.Function):
    """x [n, K], weight [m, K], bias [m] -> [n, m]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)  # a frozen weight needs no x
        return linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            linear(gradient, weight.t()) if wants_x else None,
            sum_of_outer(None, gradient, x) if wants_weight else None,
            gradient.sum(0) if wants_bias else None,
        )
