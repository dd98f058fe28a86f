"""Matrix products by the quicker of the CPU's two libraries.

torch multiplies fp32 matrices with MKL, which runs its AVX2 code on processors that Intel did not make. oneDNN, which
torch ships as well, uses AVX-512 on all that have it: twice as fast there, in the same arithmetic. Everywhere else
these functions are torch's own products. They carry no gradient: call them in an `autograd.Function` or without grad.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def _wide_vectors() -> bool:
    """Whether oneDNN has AVX-512 to use, and its operator for dense tensors exists in this torch."""
    available = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return available and torch.backends.cpu.get_cpu_capability() == "AVX512"


def by_onednn(*tensors: Tensor) -> bool:
    """Whether oneDNN multiplies these: fp32 on such a CPU, unless `torch.backends.mkldnn.flags(enabled=False)`."""
    ours = all(x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() > 0 for x in tensors)
    return ours and _wide_vectors() and torch.backends.mkldnn.enabled  # type: ignore[return-value]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [n, K], weight [m, K], bias [m] -> x weight^T + bias [n, m]."""
    if by_onednn(x, weight):
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product
    return torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())


def transposed(weight: Tensor) -> Tensor:
    """weight [m, K] -> [K, m] for `linear`, laid out as the library likes it: a copy for oneDNN, a view elsewhere."""
    return weight.t().contiguous() if by_onednn(weight) else weight.t()


def sum_of_outer(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """total [m, K] + a^T b, for a [n, m] and b [n, K]; total is fp32 or fp64, and changed in place if there is one."""
    if by_onednn(a, b):  # the transposed product is quicker, so the total is laid out like it
        product = linear(b.t().contiguous(), a.t()).t()
    elif total is not None and total.dtype == a.dtype:
        return total.addmm_(a.t(), b)
    else:
        product = torch.mm(a.t(), b)
    return product.to(torch.promote_types(a.dtype, torch.float32)) if total is None else total.add_(product)
