"""Tokens drawn by inverse CDF in two levels: a block of the vocabulary, then a token within the block.

One uniform number per row decides, so a row's token depends on its logits and its number only. Sums over blocks are
fp32, which changes a block's probability by about 1e-7 of itself. The rest, which decides about rare tokens, is fp64
but short: a running sum over the blocks' totals, and one within the block that was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grpokit.errors import UsageError
from grpokit_hf.tokens.truncation import (
    IMPOSSIBLE,
    check_settings,
    forbid,
    kept_as_indices,
    packed,
    truncation,
)

BLOCK = 128  # tokens


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One token per row, and what the training pass needs to give the same log-prob.

    Attributes:
        tokens: [B] int64.
        logprobs: [B] fp32, of the distribution that they were drawn from: after temperature and truncation.
        entropy: [B] fp32 of that distribution, if asked for.
        kept: the tokens that truncation left, for `FusedHead`: [B, top_k] int32 indices or [B, ceil(V / 8)] uint8 bits
            (see `grpokit_hf.tokens.truncation`); None without truncation.
    """

    tokens: Tensor
    logprobs: Tensor
    entropy: Tensor | None = None
    kept: Tensor | None = None


def draw(
    logits: Tensor,
    uniforms: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    forbidden: Tensor | None = None,
    entropy: bool = False,
) -> Draw:
    """Draw one token per row.

    A token of probability zero is never drawn. A row with a NaN or an infinite logit gets some token with the log-prob
    NaN; a run then stops and names the row.

    Args:
        logits: [B, V].
        uniforms: [B] in (0, 1), fp64 (see `grpokit.sampling.uniforms`).
        temperature: divides the logits.
        top_k: leaves the k most likely tokens; 0 leaves all.
        top_p: leaves the fewest tokens that have this probability together, of what top_k left (nucleus sampling,
            Holtzman et al., 2020, arXiv:1904.09751).
        min_p: leaves tokens with at least this share of the largest probability (Nguyen et al., 2024,
            arXiv:2407.01082).
        forbidden: [V] bool, tokens that are never drawn.
        entropy: whether to give the entropy.

    Raises:
        UsageError: a setting outside its range.
    """
    check_settings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    if logits.ndim != 2 or uniforms.shape != logits.shape[:1]:
        raise UsageError(
            f"draw needs logits [B, V] and uniforms [B], got {tuple(logits.shape)} and {tuple(uniforms.shape)}."
        )
    scaled = _scaled(logits, temperature, forbidden)
    candidates = kept = None
    if kept_as_indices(scaled.shape[1], top_k):
        scaled, candidates = scaled.topk(top_k, dim=1)  # [B, V] -> [B, top_k], the most likely first
        kept, top_k = candidates.int(), 0
    p = scaled.softmax(1)
    log_total = scaled.amax(1) - p.amax(1).log()  # the log-sum-exp: the largest probability is exp(0) / total
    if 0 < top_k < scaled.shape[1] or top_p < 1 or min_p > 0:
        keep = truncation(p, top_k=top_k, top_p=top_p, min_p=min_p)
        mass = p.mul_(keep).sum(1)
        p.div_(mass[:, None])
        log_total += mass.log()
        if kept is None:
            kept = packed(keep)
        else:
            kept = torch.where(keep > 0, kept, kept[:, :1])  # the first always stays
    index = inverse_cdf(p, uniforms)[:, None]  # [B] -> [B, 1]
    tokens = index if candidates is None else candidates.gather(1, index)
    return Draw(
        tokens=tokens[:, 0],
        logprobs=scaled.gather(1, index)[:, 0] - log_total,
        entropy=log_total - _mean(scaled, p) if entropy else None,
        kept=kept,
    )


def _scaled(logits: Tensor, temperature: float, forbidden: Tensor | None) -> Tensor:
    """The logits divided by the temperature, in fp32, without those of forbidden tokens."""
    scaled = logits.float() if temperature == 1 else logits.float() * (1 / temperature)
    if forbidden is None:
        return scaled
    return forbid(scaled.clone() if scaled is logits else scaled, forbidden)


def _mean(logits: Tensor, p: Tensor) -> Tensor:
    """The mean [B] of logits under probabilities; impossible tokens count as 0."""
    return logits.clamp(min=IMPOSSIBLE).mul_(p).sum(1)


def inverse_cdf(p: Tensor, uniforms: Tensor) -> Tensor:
    """Draw indices: p [B, V] fp32, normalised to rounding, and uniforms [B] in (0, 1) -> [B] int64."""
    last, blocks = p.shape[1] - 1, p.shape[1] // BLOCK
    whole, rest = p.tensor_split([blocks * BLOCK], 1)
    sums = whole.unflatten(1, (blocks, BLOCK)).sum(2)  # [B, V] -> [B, blocks]
    sums = torch.cat([sums, rest.sum(1, keepdim=True)], 1)
    block, share = _search(sums.double(), uniforms.double())
    columns = block[:, None] * BLOCK + torch.arange(BLOCK, device=p.device)  # [B, BLOCK]
    inside = p.gather(1, columns.clamp(max=last))
    inside = torch.where(columns <= last, inside, 0.0)
    index, _ = _search(inside.double(), share)
    drawn = columns.gather(1, index[:, None])[:, 0]
    return drawn.clamp_(max=last)  # in a row of NaN it may be beyond


def _search(weights: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """The entry where the running sum passes `level`, and how far into the entry that is.

    weights [B, n] fp64 and level [B] in [0, 1], a share of their sum -> index [B], share of the entry [B] in [0, 1].
    """
    running = weights.cumsum(1)
    total = running[:, -1:]
    below = total.nextafter(torch.zeros_like(total))  # so that something is above the goal
    goal = torch.minimum(level[:, None] * total, below)
    index = torch.searchsorted(running, goal, right=True)
    index.clamp_(max=weights.shape[1] - 1)
    weight = weights.gather(1, index)
    share = (goal - running.gather(1, index) + weight) / weight
    return index[:, 0], share.clamp(0, 1)[:, 0]
