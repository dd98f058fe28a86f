"""Norms and gated MLPs that keep less for the backward pass.

A transformer's block keeps most of its memory for two cheap things: the steps of its RMS norms, and those of
down(act(gate(x)) * up(x)). Here a norm keeps its input and one number per token, and a gated MLP keeps gate(x) and
up(x); the rest is computed again in the backward pass, without a matrix product. Values and gradients stay the same.

Modules are known by their parts, whichever family they are from: a module's own forward must give what the formula
gives, which is tried once, or it is left alone. For models whose weights are all fp32, without autocast; on a GPU norms
are single kernels in other precisions, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import rms_norm

from grpokit_hf.cpu.products import linear, sum_of_outer
from grpokit_hf.models.forwards import Forward

SCALES = (1e-3, 1.0, 1e2, 1e4)  # of the rows of a trial: another eps shows in small numbers, a clamp in large ones

_GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_follows: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # whether a module computes the formula


def lean_forwards(model: nn.Module) -> Iterator[tuple[nn.Module, Forward]]:
    """The modules that can keep less, each with a forward that does."""
    if next(model.parameters()).device.type == "cuda":
        yield from fused_norms(model)
    else:
        for norm, eps in rms_norms(fp32_modules(model)):
            yield norm, _norm(norm, eps)
    for mlp in gated_mlps(model):
        if type(mlp.down_proj) is nn.Linear and not list(mlp.act_fn.parameters()):  # `_Down` has no gradient for those
            yield mlp, _gated(mlp)


def fused_norms(model: nn.Module) -> Iterator[tuple[nn.Module, Forward]]:
    """The norms of a model on a GPU in any precision, each with a forward of one kernel in place of seven or eight.

    In bfloat16 it rounds once, and not before and after the product with the weight.
    """
    for norm, eps in rms_norms(model.modules()):
        yield norm, _fused(norm, eps)


def rms_norms(modules: Iterable[Any]) -> Iterator[tuple[Any, float]]:
    """Those that are norms weight * x / sqrt(mean(x^2) + eps), each with its eps."""
    for norm in modules:
        eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
        names = [name for name, _ in norm.named_parameters()]
        if not isinstance(eps, float) or names != ["weight"]:
            continue
        if _computes(norm, len(norm.weight), partial(_normed, norm, eps)):
            yield norm, eps


def gated_mlps(model: nn.Module) -> Iterator[Any]:
    """The MLPs down(act(gate(x)) * up(x)) of a model that is all fp32."""
    for mlp in fp32_modules(model):
        parts = set(dict(mlp.named_children()))
        if parts != _GATED or list(mlp.parameters(recurse=False)):
            continue
        width = getattr(mlp.gate_proj, "in_features", None)
        if width is not None and _computes(mlp, width, partial(_gate, mlp)):
            yield mlp


def _normed(norm: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, norm.weight.shape, norm.weight.float(), eps)


def _gate(mlp: Any, x: Tensor) -> Tensor:
    gate = mlp.act_fn(mlp.gate_proj(x))
    y: Tensor = mlp.down_proj(gate * mlp.up_proj(x))
    return y


def fp32_modules(model: nn.Module) -> Iterator[Any]:
    """All modules of a model whose weights are all fp32; none of another."""
    if all(p.dtype == torch.float32 for p in model.parameters()):
        yield from model.modules()


def _computes(module: nn.Module, width: int, formula: Forward) -> bool:
    """Whether a module computes a formula of one tensor [..., width], which is tried once."""
    if module not in _follows:
        x = trial_rows(width, torch.Generator().manual_seed(0))
        x = x.to(next(module.parameters()).device)
        takes_one = len(inspect.signature(module.forward).parameters) == 1  # unlike a norm with a gate
        with torch.no_grad():
            _follows[module] = takes_one and alike(module(x), formula(x), relative=1e-5)
    return _follows[module]


def trial_rows(width: int, generator: torch.Generator) -> Tensor:
    """Random rows of all `SCALES`: [rows, width]."""
    rows = torch.randn(len(SCALES), width, generator=generator)
    return rows * torch.tensor(SCALES)[:, None]


def alike(a: Tensor, b: Tensor, *, relative: float) -> bool:
    """Whether rows [n, ...] are finite and agree to rounding, which depends on a row's largest number as well."""
    if a.shape != b.shape:
        return False
    a, b = a.flatten(1), b.flatten(1)
    size = b.abs()
    allowed = relative * (size + 0.1 * size.amax(1, keepdim=True))
    return bool(((a - b).abs() <= allowed).all())


def _fused(norm: Any, eps: float) -> Forward:
    def forward(x: Tensor) -> Tensor:
        if x.dtype != norm.weight.dtype:  # no kernel reads both
            y: Tensor = type(norm).forward(norm, x)
            return y
        return rms_norm(x, norm.weight.shape, norm.weight, eps)

    return forward


def _norm(norm: Any, eps: float) -> Forward:
    return lambda x: _Norm.apply(x, norm.weight, eps)  # type: ignore[no-untyped-call]


def _gated(mlp: Any) -> Forward:
    down = mlp.down_proj

    def forward(x: Tensor) -> Tensor:
        gate = mlp.gate_proj(x).flatten(0, -2)
        up = mlp.up_proj(x).flatten(0, -2)
        y: Tensor = _Down.apply(gate, up, down.weight, down.bias, mlp.act_fn)  # type: ignore[no-untyped-call]
        return y.view(*x.shape[:-1], -1)

    return forward


class _Norm(torch.autograd.Function):
    """x [..., H], weight [H] -> weight * x / sqrt(mean(x^2) + eps) (Zhang and Sennrich, 2019, arXiv:1910.07467)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
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
        for_x = torch.mul(gradient, weight, out=product)
        for_x.sub_(normed.mul_(mean)).mul_(scale)
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
        for_product = linear(gradient, weight.t())
        for_gate, for_up = torch.autograd.grad(product, leaves, for_product)
        return (
            for_gate,
            for_up,
            sum_of_outer(None, gradient, product.detach()) if wants_weight else None,
            gradient.sum(0) if wants_bias else None,
            None,
        )
