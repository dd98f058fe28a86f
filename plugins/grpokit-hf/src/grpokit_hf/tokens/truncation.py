"""Which tokens top-k, top-p and min-p leave, and how the training pass gets to know them.

A log-prob of a truncated distribution is right only with the very set of tokens that the sampler left: the same rule,
applied to logits that other arithmetic made, may leave one more or one less. So the sampler stores the set, as `kept`:
the indices [..., top_k] int32 where top-k leaves few tokens, or else one bit per token, [..., ceil(V / 8)] uint8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpokit.errors import UsageError

IMPOSSIBLE = -1e30  # the logit of a token of probability zero; finite, so that probability times logit is zero, too
COLDEST, HOTTEST = 1e-8, 1e8  # temperatures by which logits can be divided in fp32
_PACK = 0x0102040810204080  # times eight bytes of 0 or 1: their bits in the highest byte


def check_settings(*, temperature: float, top_k: int, top_p: float, min_p: float, prefix: str = "") -> None:
    """Check a sampler's settings.

    Args:
        temperature: what logits are divided by.
        top_k: 0 for all tokens.
        top_p: 1 for all tokens.
        min_p: 0 for all tokens.
        prefix: what the names begin with in a message.

    Raises:
        UsageError: one is outside its range.
    """
    if not COLDEST <= temperature <= HOTTEST:
        raise UsageError(f"{prefix}temperature must be from {COLDEST:g} to {HOTTEST:g}, got {temperature}.")
    if top_k < 0 or top_k != int(top_k):
        raise UsageError(f"{prefix}top_k must be a whole number, or 0 for all tokens; got {top_k}.")
    if not 0 < top_p <= 1:
        raise UsageError(f"{prefix}top_p must be above 0 and at most 1, which means all tokens; got {top_p}.")
    if not 0 <= min_p <= 1:
        raise UsageError(f"{prefix}min_p must be between 0, which means all tokens, and 1; got {min_p}.")


def kept_as_indices(vocabulary: int, top_k: int) -> bool:
    """Whether `kept` holds indices: they take less room than bits (4 bytes each against V / 8)."""
    return 0 < 32 * top_k <= vocabulary


def truncation(p: Tensor, *, top_k: int, top_p: float, min_p: float) -> Tensor:
    """1 for the tokens that stay and 0 for the others: p [B, V] fp32 -> [B, V] fp32.

    top_k first, then top_p of what is left, then min_p, as in transformers. All tokens as likely as the last one stay.
    Where `kept` holds indices, p is of exactly top_k tokens, which the sampler picked before.
    """
    lowest = torch.zeros_like(p[:, :1])
    if 0 < top_k < p.shape[1]:
        top = p.topk(top_k, dim=1, sorted=False).values
        lowest = top.amin(1, keepdim=True)
    if top_p < 1:
        left = (p * _at_least(p, lowest)).sum(1, keepdim=True)
        lowest = torch.maximum(lowest, _nucleus(p, top_p * left))
    likeliest = p.amax(1, keepdim=True)
    return _at_least(p, torch.maximum(lowest, min_p * likeliest))


def _nucleus(p: Tensor, mass: Tensor) -> Tensor:
    """The largest number for which the tokens of at least this probability have `mass`: [B, V], [B, 1] -> [B, 1].

    A GPU sorts, in a few launches. On a CPU bisection on a float's bits, which are in the order of the numbers, is
    quicker: 30 sums.
    """
    if p.device.type == "cuda":
        falling = p.sort(1, descending=True).values
        before = (falling.cumsum(1) < mass).sum(1, keepdim=True)  # so many tokens have less together
        return falling.gather(1, before.clamp(max=p.shape[1] - 1))
    low = torch.zeros_like(mass, dtype=torch.int32)
    high = p.amax(1, keepdim=True).view(torch.int32) + 1
    stays = torch.empty_like(p)
    for _ in range(30):  # 1.0 is 0x3F800000
        middle = (low + high) // 2
        torch.ge(p, middle.view(torch.float32), out=stays)
        enough = stays.mul_(p).sum(1, keepdim=True) >= mass
        low = torch.where(enough, middle, low)
        high = torch.where(enough, high, middle)
    return low.view(torch.float32)


def _at_least(p: Tensor, lowest: Tensor) -> Tensor:
    """p >= lowest as 0 and 1 in fp32, which CPUs do four times quicker than booleans."""
    return torch.ge(p, lowest, out=torch.empty_like(p))


def packed(keep: Tensor) -> Tensor:
    """One bit per token, the first token in the lowest bit: keep [B, V] of 0 and 1 -> [B, ceil(V / 8)] uint8."""
    spare = -keep.shape[1] % 8
    keep = torch.nn.functional.pad(keep.to(torch.uint8), (0, spare))
    return ((keep.view(torch.int64) * _PACK) >> 56).to(torch.uint8)


def check_kept(kept: Tensor, *, rows: int, vocabulary: int) -> None:
    """Check the form of `kept`.

    Raises:
        UsageError: neither indices nor bits of so many rows and tokens.
    """
    width = -(-vocabulary // 8)
    bits = kept.dtype == torch.uint8 and kept.shape == (rows, width)
    indices = kept.dtype == torch.int32 and len(kept) == rows
    if bits or indices:
        return
    raise UsageError(
        f"kept must be bits [{rows}, {width}] uint8, or indices [{rows}, top_k] int32, as the sampler gave them; got "
        f"{tuple(kept.shape)} {kept.dtype}."
    )


def restrict(logits: Tensor, kept: Tensor) -> Tensor:
    """Make the tokens outside `kept` impossible: logits [n, V], changed in place, and kept [n, ...] -> logits."""
    if kept.dtype == torch.uint8:
        byte = torch.arange(256, device=kept.device)
        bits = byte[:, None] >> torch.arange(8, device=kept.device)
        penalty = (1.0 - (bits & 1)) * IMPOSSIBLE  # [256, 8]: a table look-up is quicker than shifting bits
        penalties = torch.nn.functional.embedding(kept.int(), penalty).flatten(1)
        return logits.add_(penalties[:, : logits.shape[1]])
    indices = kept.long()
    values = logits.gather(1, indices)
    return logits.fill_(IMPOSSIBLE).scatter_(1, indices, values)


def forbid(logits: Tensor, forbidden: Tensor) -> Tensor:
    """Make some tokens impossible: logits [n, V], changed in place, and forbidden [V] bool -> logits."""
    return logits.add_(forbidden.to(logits.dtype) * IMPOSSIBLE)
