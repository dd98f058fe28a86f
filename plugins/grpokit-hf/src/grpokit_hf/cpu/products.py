"""Matrix products by the quicker of the CPU's two libraries.

torch multiplies fp32 matrices with MKL, which runs its AVX2 code on processors that Intel did not make. oneDNN, which
torch ships as well, uses AVX-512 on all that have it: twice as fast there, in the same arithmetic. With AVX2 alone it
is quicker for few rows, and a little for many. Everywhere else these functions are torch's own products. They carry no
gradient: call them in an `autograd.Function` or without grad.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

TILE = 5_000_000  # numbers of a product that is then added up: fresh memory for more costs as much as the product


@cache
def _wide_vectors() -> bool:
    """Whether oneDNN has AVX-512 or AVX2 to use, and its operator for dense tensors exists in this torch."""
    available = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return available and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def by_onednn(*tensors: Tensor) -> bool:
    """Whether oneDNN multiplies these: fp32 on such a CPU, unless `torch.backends.mkldnn.flags(enabled=False)`."""
    for x in tensors:
        if x.device.type != "cpu" or x.dtype != torch.float32 or x.numel() == 0:
            return False
    return _wide_vectors() and torch.backends.mkldnn.enabled  # type: ignore[return-value]


def spare_rows(count: int, like: Tensor) -> int:
    """How many rows of zeros a product of `count` rows should have more, if it is computed like a tensor.

    oneDNN compiles code for each size that it meets, which takes about a megabyte and stays. Samples of any lengths
    would fill the memory step by step. So sizes are rounded up: to eights, and from 512 on to a 32nd of the power
    of two below them.
    """
    if count < 8 or not by_onednn(like):
        return 0
    step: int = max(8, 2 ** (count.bit_length() - 6))
    return -count % step


def filled(x: Tensor, size: int) -> Tensor:
    """x [n, ...] with zeros below: [size, ...]."""
    if len(x) == size:
        return x
    zeros = x.new_zeros(size - len(x), *x.shape[1:])
    return torch.cat([x, zeros])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [n, K], weight [m, K], bias [m] -> x weight^T + bias [n, m]."""
    if by_onednn(x, weight):
        x, weight = _whole(x), _whole(weight)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product
    if bias is None:
        return torch.mm(x, weight.t())
    return torch.addmm(bias, x, weight.t())


def _whole(x: Tensor) -> Tensor:
    """x or a copy: oneDNN takes a hundred times longer for a matrix that is a window of a larger one."""
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


def sum_of_outer(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """total [m, K] + a^T b, for a [n, m] and b [n, K]; total is fp32 or fp64, and changed in place if there is one."""
    if by_onednn(a, b) and a.shape[1] < b.shape[1]:  # oneDNN wants the wider one second
        return sum_of_outer(None if total is None else total.t(), b, a).t()
    if by_onednn(a, b):  # the transposed product is quicker, so the total is laid out like it
        across = b.t().contiguous()
        tiles = -(-len(across) * a.shape[1] // TILE)
        if total is None and tiles == 1:
            return linear(across, a.t()).t()
        if total is None:
            total = across.new_zeros(len(across), a.shape[1]).t()
        parts = total.t().chunk(tiles)
        for part, rows in zip(parts, across.chunk(tiles), strict=True):
            part.add_(linear(rows, a.t()))
        return total
    if total is not None and total.dtype == a.dtype:
        return total.addmm_(a.t(), b)
    product = torch.mm(a.t(), b)
    if total is None:
        return product.to(torch.promote_types(a.dtype, torch.float32))
    return total.add_(product)


def packed(weight: Tensor, bias: Tensor | None, *, rows: int) -> Callable[[Tensor], Tensor]:
    """A product with a copy of the weight that is laid out for about so many rows: x [n, K] -> [n, m].

    Args:
        weight: [m, K].
        bias: [m], or None.
        rows: about n.
    """
    if by_onednn(weight):
        blocks = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
        return lambda x: torch.ops.mkldnn._linear_pointwise(x, blocks, bias, "none", [], "")
    columns = weight.t().contiguous()  # [K, m]
    if bias is None:
        return lambda x: x @ columns
    return lambda x: torch.addmm(bias, x, columns)
