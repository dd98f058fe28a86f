"""A language model's head with the log-softmax of its targets, a chunk of tokens at a time.

The logits of all tokens, [N, V], are the largest tensor of a training step. Only one of their log-probs per token is
needed, so the head makes them for some tokens at a time and keeps one number of each. The backward pass makes them
again, so there are four matrix products in all.

With d = softmax(logits) - onehot(target), the gradient of a log-prob is -d W for the hidden state and -d^T hidden for
the weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from grpokit.errors import UsageError
from grpokit_hf.cpu.products import filled, linear, spare_rows, sum_of_outer
from grpokit_hf.tokens.truncation import check_kept, forbid, restrict

Entropy = Literal["no", "value", "grad"]
"""Whether entropies are computed, and with gradient: as in `grpokit.types.Ask`."""

CHUNK = {"cpu": 256}  # tokens: fewer leave the products slow, more gain nothing
CHUNK_ELSEWHERE = 1024


class FusedHead(nn.Module):
    """Log-probs of target tokens from hidden states, without the logits of all tokens at once.

    Call it as a module, so that hooks (FSDP2, profilers) see it. It owns no parameters: the weight stays in the model.
    """

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        scale: float = 1.0,
        softcap: float | None = None,
        kept: Tensor | None = None,
        forbidden: Tensor | None = None,
        entropy: Entropy = "no",
        chunk: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs of `targets` under softmax(scale * cap(hidden weight^T + bias)), with gradient.

        Products are computed in autocast's dtype, or else the weight's; the softmax is fp32 (fp64 for an fp64 weight).

        Args:
            hidden: [N, H].
            targets: [N] int64.
            weight: [V, H]; a weight that needs no gradient costs none.
            bias: [V].
            scale: 1 / temperature.
            softcap: c of c * tanh(logits / c), before the temperature (Gemma 2, 2024, arXiv:2408.00118).
            kept: the tokens that each target was drawn from, [N, ...] (`drawing.Draw.kept`); None for all.
            forbidden: [V] bool, tokens that are never drawn.
            entropy: "no"; "value": without gradient; "grad": with it.
            chunk: tokens at a time; by default 256 on a CPU and 1,024 elsewhere.

        Returns:
            Log-probs [N] and entropy [N] (None for "no"), fp32.

        Raises:
            UsageError: shapes that do not fit, or a scale, softcap or chunk that is not positive.
        """
        job = _job(hidden, weight, scale, softcap, kept=kept, forbidden=forbidden, entropy=entropy, chunk=chunk)
        _check(hidden, targets, weight, bias, job)
        with torch.autocast(hidden.device.type, enabled=False):
            logprobs, entropies = _Head.apply(hidden, weight, bias, targets, job)  # type: ignore[no-untyped-call]
        return logprobs, entropies


def fused_kl(
    hidden: Tensor,
    others: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    scale: float = 1.0,
    softcap: float | None = None,
    kept: Tensor | None = None,
    forbidden: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    """The KL of each token's distribution from that of other hidden states, behind the same head: [N], fp32.

    With p and q the two distributions, its gradient by the logits is p (log p - log q - KL). It takes six matrix
    products in all, and never has all logits.

    Args:
        hidden: [N, H], of p.
        others: [N, H], of q, which get no gradient.
        weight: as for `FusedHead`, like all that follow; its gradient is that of p.
        bias: [V].
        scale: 1 / temperature.
        softcap: before the temperature.
        kept: the tokens that are possible, of both.
        forbidden: [V] bool, tokens that are not.
        chunk: tokens at a time.
    """
    job = _job(hidden, weight, scale, softcap, kept=kept, forbidden=forbidden, entropy="no", chunk=chunk)
    with torch.autocast(hidden.device.type, enabled=False):
        kl: Tensor = _KL.apply(hidden, weight, bias, others, job)  # type: ignore[no-untyped-call]
    return kl


def _job(
    hidden: Tensor,
    weight: Tensor,
    scale: float,
    softcap: float | None,
    *,
    kept: Tensor | None,
    forbidden: Tensor | None,
    entropy: Entropy,
    chunk: int | None,
) -> _Job:
    device = hidden.device.type
    chunk = CHUNK.get(device, CHUNK_ELSEWHERE) if chunk is None else chunk
    return _Job(
        scale=scale,
        softcap=softcap,
        kept=kept,
        forbidden=forbidden,
        entropy=entropy,
        chunks=_chunks(len(hidden), chunk),
        dtype=torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype,
    )


@dataclass(frozen=True, kw_only=True)
class _Job:
    """The arguments of `FusedHead.forward` that no gradient flows to, and the dtype of the products."""

    scale: float
    softcap: float | None
    kept: Tensor | None
    forbidden: Tensor | None
    entropy: Entropy
    chunks: Sequence[slice]
    dtype: torch.dtype

    def cast(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """A weight and a bias in the dtype of the products."""
        return weight.to(self.dtype), None if bias is None else bias.to(self.dtype)

    def logits(self, x: Tensor, weight: Tensor, bias: Tensor | None, part: slice) -> Tensor:
        """What the softmax sees: x [n, H] -> [n, V], fp32 or fp64."""
        logits = linear(x, weight, bias).to(_wide(self.dtype))
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.scale != 1:
            logits.mul_(self.scale)
        if self.forbidden is not None:
            forbid(logits, self.forbidden)
        if self.kept is not None:
            restrict(logits, filled(self.kept[part], len(x)))
        return logits

    def cap_slope(self, logits: Tensor) -> Tensor | None:
        """The derivative of the soft cap, from the logits after it: [n, V]; 0 for impossible tokens."""
        if self.softcap is None:
            return None
        capped = logits / (self.softcap * self.scale)
        return capped.square_().neg_().add_(1).clamp_(min=0)


class _Gradients:
    """The gradients of hidden, weight and bias, added up over the chunks."""

    def __init__(self, hidden: Tensor, weight: Tensor, needed: Sequence[bool]) -> None:
        self.needed = needed
        self.hidden = torch.empty_like(hidden) if needed[0] else None
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        self._weight = weight

    @property
    def formed(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Of hidden, weight and bias; None where it is not needed."""
        return self.hidden, self.weight, self.bias

    def add(self, part: slice, x: Tensor, d: Tensor, slope: Tensor) -> None:
        """Add a chunk's, where dLoss/dlogits is slope * d: x [n, H], d [n, V], slope [n]."""
        narrow = d.to(x.dtype)
        count = part.stop - part.start
        if self.hidden is not None:
            back = linear(narrow, self._weight.t())
            self.hidden[part] = (back * slope[:, None])[:count]
        if self.needed[1]:
            scaled = (x * slope[:, None]).to(x.dtype)
            self.weight = sum_of_outer(self.weight, narrow, scaled)
        if self.needed[2]:
            bias = d.t().mv(slope)
            self.bias = bias if self.bias is None else self.bias.add_(bias)


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, job: _Job
    ) -> tuple[Tensor, Tensor | None]:
        w, b = job.cast(weight, bias)
        logprobs = torch.empty(len(hidden), dtype=_wide(job.dtype), device=hidden.device)
        entropy = None if job.entropy == "no" else torch.empty_like(logprobs)
        for part in job.chunks:
            x, size = _even(hidden[part].to(job.dtype))
            chosen = filled(targets[part], size)[:, None]
            count = part.stop - part.start
            logits = job.logits(x, w, b, part)
            largest = logits.amax(1)
            target_logits = logits.gather(1, chosen)[:, 0]
            # the entropy takes logits and probabilities together
            p = torch.softmax(logits, 1, out=logits) if entropy is None else logits.softmax(1)
            own = target_logits - largest + p.amax(1).log()  # the largest p is exp(0) / sum
            logprobs[part] = own[:count]
            if entropy is not None:
                mean = logits.mul_(p).sum(1)
                entropy[part] = (target_logits - own - mean)[:count]
            del logits, p  # before the next chunk's
        ctx.job = job
        ctx.save_for_backward(hidden, weight, bias, targets, logprobs, entropy)
        if entropy is not None and job.entropy == "value":
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, entropy_slope: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, logprobs, entropy = ctx.saved_tensors
        job: _Job = ctx.job
        with torch.autocast(hidden.device.type, enabled=False):
            w, b = job.cast(weight, bias)
            gradients = _Gradients(hidden, w, ctx.needs_input_grad)
            for part in job.chunks:
                x, size = _even(hidden[part].to(job.dtype))
                chosen = filled(targets[part], size)[:, None]
                logits = job.logits(x, w, b, part)
                cap_slope = job.cap_slope(logits)
                row_slope = filled(slope[part], size)
                if job.entropy == "grad" and entropy is not None and entropy_slope is not None:
                    # d entropy / d logit = -p (log p + entropy), where log p = logit - target's + its log-prob
                    target_logits = logits.gather(1, chosen)[:, 0]
                    shift = target_logits - filled(logprobs[part] + entropy[part], size)
                    p = logits.softmax(1)
                    by_entropy = filled(entropy_slope[part], size)
                    d = logits.sub_(shift[:, None])
                    d.mul_(by_entropy[:, None]).add_(row_slope[:, None]).mul_(p)
                    d.scatter_add_(1, chosen, -row_slope[:, None])
                    del p
                    row_slope = torch.ones_like(row_slope)
                else:
                    d = _minus_onehot(torch.softmax(logits, 1, out=logits), chosen)
                d = d if cap_slope is None else d.mul_(cap_slope)
                del logits, cap_slope
                gradients.add(part, x, d, row_slope * -job.scale)
                del d  # before the next chunk's
        return *gradients.formed, None, None


class _KL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, others: Tensor, job: _Job) -> Tensor:
        w, b = job.cast(weight, bias)
        kl = torch.empty(len(hidden), dtype=_wide(job.dtype), device=hidden.device)
        for part in job.chunks:
            x, _ = _even(hidden[part].to(job.dtype))
            p, lead = _compared(x, others[part], w, b, part, job)
            kl[part] = (p * lead).sum(1)[: part.stop - part.start]
        ctx.job = job
        ctx.save_for_backward(hidden, weight, bias, others, kl)
        return kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, others, kl = ctx.saved_tensors
        job: _Job = ctx.job
        with torch.autocast(hidden.device.type, enabled=False):
            w, b = job.cast(weight, bias)
            gradients = _Gradients(hidden, w, ctx.needs_input_grad)
            for part in job.chunks:
                x, size = _even(hidden[part].to(job.dtype))
                cap_slope = None
                if job.softcap is not None:
                    cap_slope = job.cap_slope(job.logits(x, w, b, part))
                p, lead = _compared(x, others[part], w, b, part, job)
                mean = filled(kl[part], size)[:, None]
                d = lead.sub_(mean).mul_(p)
                d = d if cap_slope is None else d.mul_(cap_slope)
                gradients.add(part, x, d, filled(slope[part], size) * job.scale)
                del p, lead, d  # before the next chunk's
        return *gradients.formed, None, None


def _compared(x: Tensor, others: Tensor, w: Tensor, b: Tensor | None, part: slice, job: _Job) -> tuple[Tensor, Tensor]:
    """p and log p - log q of a chunk: [n, V] each."""
    y, _ = _even(others.to(job.dtype))
    other_logprobs = job.logits(y, w, b, part).log_softmax(1)
    logprobs = job.logits(x, w, b, part).log_softmax(1)
    p = logprobs.exp()
    return p, logprobs.sub_(other_logprobs)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Of softmax and sums: fp32, or fp64 for fp64."""
    return torch.promote_types(dtype, torch.float32)


def _minus_onehot(p: Tensor, targets: Tensor) -> Tensor:
    """p [n, V] less 1 at each row's target [n, 1], in place."""
    minus_one = p.new_full((1, 1), -1.0)
    return p.scatter_add_(1, targets, minus_one.expand(len(p), 1))


def _even(x: Tensor) -> tuple[Tensor, int]:
    """x [n, H] with rows of zeros below, as many as its products should have, and how many it then has."""
    size = len(x) + spare_rows(len(x), x)
    return filled(x, size), size


def _chunks(count: int, chunk: int) -> Sequence[slice]:
    """At least one slice, of up to `chunk` tokens."""
    if chunk < 1:
        raise UsageError(f"chunk must be at least 1 token, got {chunk}.")
    return [slice(start, min(start + chunk, count)) for start in range(0, max(count, 1), chunk)]


def _check(hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor | None, job: _Job) -> None:
    shapes = [tuple(x.shape) for x in (hidden, targets, weight)]
    tables = hidden.ndim == weight.ndim == 2
    if not tables or targets.shape != hidden.shape[:1] or hidden.shape[1] != weight.shape[1]:
        raise UsageError(
            f"A fused head needs hidden [N, H], targets [N] and weight [V, H]; got {shapes[0]}, {shapes[1]} and "
            f"{shapes[2]}."
        )
    for name, x in (("bias", bias), ("forbidden", job.forbidden)):
        if x is not None and x.shape != weight.shape[:1]:
            raise UsageError(f"{name} must have one entry per token, [{len(weight)}]; got {tuple(x.shape)}.")
    if job.kept is not None:
        check_kept(job.kept, rows=len(hidden), vocabulary=len(weight))
    for name, number in (("scale", job.scale), ("softcap", job.softcap)):
        if number is not None and not 0 < number < float("inf"):
            raise UsageError(f"{name} must be a finite number above 0, got {number}.")
    if job.entropy not in ("no", "value", "grad"):
        raise UsageError(f"entropy must be 'no', 'value' or 'grad', got {job.entropy!r}.")
