"""Norms and gated MLPs that keep less for the backward pass.

A transformer's block keeps most of its memory for two cheap things: the steps of its RMS norms, and those of
down(act(gate(x)) * up(x)). Here a norm keeps its input and one number per token, and a gated MLP keeps gate(x) and
up(x); the rest is computed again in the backward pass, without a matrix product. Values and gradients stay the same.

Modules are known by their parts, whichever family they are from: on its first call a module's own forward must give
what the formula gives, or it is left alone. For models whose weights are all fp32, without autocast.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from grpokit.policies.products import linear, sum_of_outer

Forward = Callable[[Tensor], Tensor]

_GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_follows: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # whether a module computes the formula


def lean_forwards(model: nn.Module) -> Iterator[tuple[nn.Module, Forward]]:
    """The modules that can keep less, each with a forward that does."""
    if any(p.dtype != torch.float32 for p in model.parameters()):
        return
    for module in model.modules():
        candidate = _norm(module) or _gated(module)
        if candidate is None:
            continue
        width, forward = candidate
        if module not in _follows:
            _follows[module] = _agree(module, forward, width)
        if _follows[module]:
            yield module, forward


def _agree(module: nn.Module, forward: Forward, width: int) -> bool:
    """Whether a module computes what `forward` does, from one tensor [..., width]."""
    if len(inspect.signature(module.forward).parameters) != 1:  # such as a norm with a gate
        return False
    x = torch.randn(2, width, generator=torch.Generator().manual_seed(0)).to(next(module.parameters()).device)
    with torch.no_grad():
        return torch.allclose(module(x), forward(x), rtol=1e-5, atol=1e-6)


def _norm(module: Any) -> tuple[int, Forward] | None:
    """A norm weight * x / rms(x): its width, and a forward for it."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(eps, float) or [name for name, _ in module.named_parameters()] != ["weight"]:
        return None
    return len(module.weight), lambda x: _Norm.apply(x, module.weight, eps)  # type: ignore[no-untyped-call]


def _gated(module: Any) -> tuple[int, Forward] | None:
    """An MLP down(act(gate(x)) * up(x)) whose `down` is a plain layer: its width, and a forward for it."""
    if {name for name, _ in module.named_children()} != _GATED or type(module.down_proj) is not nn.Linear:
        return None
    down = module.down_proj

    def forward(x: Tensor) -> Tensor:
        gate, up = (layer(x).flatten(0, -2) for layer in (module.gate_proj, module.up_proj))
        y: Tensor = _Down.apply(gate, up, down.weight, down.bias, module.act_fn)  # type: ignore[no-untyped-call]
        return y.view(*x.shape[:-1], -1)

    return down.out_features, forward


class _Norm(torch.autograd.Function):
    """x [..., H], weight [H] -> weight * x / sqrt(mean(x^2) + eps) (Zhang and Sennrich, 2019, arXiv:1910.07467)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        normed: Tensor = x * scale
        return normed.mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        product = gradient * normed
        mean = (product @ weight).div_(x.shape[-1])[..., None]
        for_weight = product.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        for_x = torch.mul(gradient, weight, out=product).sub_(normed.mul_(mean)).mul_(scale)
        return for_x, for_weight, None


class _Down(torch.autograd.Function):
    """gate and up [n, I], weight [H, I], bias [H] -> (act(gate) * up) weight^T + bias [n, H]."""

    @staticmethod
    def forward(
        ctx: Any, gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None, act: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.save_for_backward(gate, up, weight)
        ctx.act = act
        return linear(act(gate) * up, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, weight = ctx.saved_tensors
        _, _, wants_weight, wants_bias, _ = ctx.needs_input_grad
        with torch.enable_grad():
            leaves = gate.detach().requires_grad_(), up.detach().requires_grad_()
            product = ctx.act(leaves[0]) * leaves[1]
        for_gate, for_up = torch.autograd.grad(product, leaves, linear(gradient, weight.t()))
        return (
            for_gate,
            for_up,
            sum_of_outer(None, gradient, product.detach()) if wants_weight else None,
            gradient.sum(0) if wants_bias else None,
            None,
        )
