"""An 8-bit layer of bitsandbytes that rounds its weights only, and multiplies each row by itself.

The layer's own product rounds its input as well, but for columns in which any row of the batch has a large number
(Dettmers et al., 2022, arXiv:2208.07339). So what a row gives depends on the rows beside it, and log-probs of sampling
and training would differ. It also passes through float16, in which large inputs overflow.
"""

from __future__ import annotations

from typing import Any

import torch
from bitsandbytes.nn import Linear8bitLt
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear


class Linear8bit(Linear8bitLt):  # type: ignore[misc]  # bitsandbytes has no types
    """A layer with int8 weights [out, in] and a scale for each output."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out], in the type of x or of an autocast."""
        scale = self.weight.SCB if self.state.SCB is None else self.state.SCB
        bias = None if self.bias is None else self.bias.to(x.dtype)
        y: Tensor = _Product.apply(x, self.weight, scale / 127, bias)  # type: ignore[no-untyped-call]
        return y


class _Product(torch.autograd.Function):
    """x [..., K], weight [m, K] int8, scale [m], bias [m] -> [..., m]. Weights are unfolded twice, and never kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight, scale)
        return linear(x, _unfolded(weight, scale, x.dtype), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, scale = ctx.saved_tensors
        return gradient @ _unfolded(weight, scale, gradient.dtype), None, None, None


def _unfolded(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.detach().to(dtype).mul_(scale[:, None])
