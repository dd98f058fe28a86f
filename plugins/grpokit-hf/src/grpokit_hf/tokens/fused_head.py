"""A language model's head with the log-softmax of its targets, a chunk of tokens at a time.

The logits of all tokens, [N, V], are the largest tensor of a training step. Only one of their log-probs per token is
needed, so the head makes them for some tokens at a time and keeps one number of each. The backward pass makes them
again (4 matrix products in all). Where the caller can predict dLoss/dlogprob, the forward pass forms the gradients at
once (3 products), and the backward pass only checks the prediction.

With d = softmax(logits) - onehot(target), the gradient of a log-prob is -d W for the hidden state and -d^T hidden for
the weight. The mean logit that the entropy needs is the target's plus hidden . (d W), so d W gives the entropy, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from grpokit.errors import UsageError, shown
from grpokit_hf.cpu.products import filled, linear, spare_rows, sum_of_outer
from grpokit_hf.tokens.truncation import check_kept, forbid, restrict

Slope = Callable[[Tensor, int], Tensor]
"""Predicts dLoss/dlogprob: (log-probs [n] of the tokens from `start` on, start) -> [n].

The gradients are then formed in the forward pass, and used if the backward pass brings the same slope up to a common
factor. Otherwise they are computed again, so a wrong prediction costs time only. Not used with entropy "grad", whose
slope nobody predicted, in fp16, where small gradients need the loss scale, or if a row is longer than 8 chunks.
"""
Entropy = Literal["no", "value", "grad"]
"""Whether entropies are computed, and with gradient: as in `grpokit.types.Ask`."""

CHUNK = {"cpu": 256}  # tokens: fewer leave the products slow, more gain nothing
CHUNK_ELSEWHERE = 1024
LONGEST_ROW = 8  # chunks: the most that a row may need to be predicted as a whole
AGREEMENT = 1e-5  # between the slope that was predicted and the one that came, relative to the largest


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
        slope: Slope | None = None,
        ends: Sequence[int] | None = None,
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
            slope: predicts dLoss/dlogprob, as `Slope` says.
            ends: where rows end (ascending, the last is N), for a slope that needs whole rows: chunks stop there only.
            chunk: tokens at a time; by default 256 on a CPU and 1,024 elsewhere.

        Returns:
            Log-probs [N] and entropy [N] (None for "no"), fp32.

        Raises:
            UsageError: shapes that do not fit, or a scale, softcap or chunk that is not positive.
        """
        device = hidden.device.type
        chunk = CHUNK.get(device, CHUNK_ELSEWHERE) if chunk is None else chunk
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        job = _Job(
            scale=scale,
            softcap=softcap,
            kept=kept,
            forbidden=forbidden,
            entropy=entropy,
            slope=slope,
            chunks=tuple(_chunks(len(hidden), chunk, ends)),
            dtype=dtype,
        )
        _check(hidden, targets, weight, bias, job)
        trained = _trained(hidden, weight, bias)
        if not (trained and job.predictable and 0 < job.longest <= LONGEST_ROW * chunk):
            job = replace(job, slope=None, chunks=tuple(_chunks(len(hidden), chunk, None)))
        with torch.autocast(device, enabled=False):
            logprobs, entropies = _Head.apply(hidden, weight, bias, targets, job)  # type: ignore[no-untyped-call]
        return logprobs, entropies


@dataclass(frozen=True, kw_only=True)
class _Job:
    """The arguments of `FusedHead.forward` that no gradient flows to, and the dtype of the products."""

    scale: float
    softcap: float | None
    kept: Tensor | None
    forbidden: Tensor | None
    entropy: Entropy
    slope: Slope | None
    chunks: tuple[slice, ...]
    dtype: torch.dtype

    @property
    def longest(self) -> int:
        """Tokens of the longest chunk."""
        return max((part.stop - part.start for part in self.chunks), default=0)

    @property
    def predictable(self) -> bool:
        """Whether gradients may be formed in the forward pass."""
        return self.slope is not None and self.entropy != "grad" and self.dtype != torch.float16

    @property
    def linear_and_wide(self) -> bool:
        """Whether the logits are a linear function of x, computed in fp32 or fp64."""
        return self.softcap is None and self.dtype == _wide(self.dtype)

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

    def add(self, part: slice, x: Tensor, d: Tensor, slope: Tensor) -> Tensor | None:
        """Add a chunk's, where dLoss/dlogits is slope * d: x [n, H], d [n, V], slope [n] -> d W [n, H], if made."""
        narrow = d.to(x.dtype)
        count = part.stop - part.start
        back = None
        if self.hidden is not None:
            back = linear(narrow, self._weight.t())
            self.hidden[part] = (back * slope[:, None])[:count]
        if self.needed[1]:
            scaled = (x * slope[:, None]).to(x.dtype)
            self.weight = sum_of_outer(self.weight, narrow, scaled)
        if self.needed[2]:
            bias = d.t().mv(slope)
            self.bias = bias if self.bias is None else self.bias.add_(bias)
        return back


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, job: _Job
    ) -> tuple[Tensor, Tensor | None]:
        w, b = job.cast(weight, bias)
        logprobs = torch.empty(len(hidden), dtype=_wide(job.dtype), device=hidden.device)
        entropy = None if job.entropy == "no" else torch.empty_like(logprobs)
        predicted = None if job.slope is None else torch.empty_like(logprobs)
        gradients = None if job.slope is None else _Gradients(hidden, w, ctx.needs_input_grad)
        # d W, which the hidden state's gradient needs anyway, gives the mean logit, so entropy costs nothing
        in_passing = gradients is not None and gradients.hidden is not None and job.linear_and_wide
        for part in job.chunks:
            x, size = _even(hidden[part].to(job.dtype))
            chosen = filled(targets[part], size)[:, None]
            count = part.stop - part.start
            logits = job.logits(x, w, b, part)
            cap_slope = None if gradients is None else job.cap_slope(logits)
            largest = logits.amax(1)
            target_logits = logits.gather(1, chosen)[:, 0]
            separate = entropy is not None and not in_passing  # it takes logits and probabilities together
            p = logits.softmax(1) if separate else torch.softmax(logits, 1, out=logits)
            own = target_logits - largest + p.amax(1).log()  # the largest p is exp(0) / sum
            logprobs[part] = own[:count]
            if entropy is not None and separate:
                mean = logits.mul_(p).sum(1)
                entropy[part] = (target_logits - own - mean)[:count]
            del logits  # what follows takes its memory
            if gradients is not None and job.slope is not None and predicted is not None:
                predicted[part] = _asked(job.slope, logprobs[part], part)
                d = _minus_onehot(p, chosen)
                d = d if cap_slope is None else d.mul_(cap_slope)
                row_slope = filled(predicted[part] * -job.scale, size)
                d_weight = gradients.add(part, x, d, row_slope)
                if entropy is not None and in_passing and d_weight is not None:
                    mean = (d_weight * x).sum(1)
                    if b is not None:
                        mean += d.mv(b)
                    entropy[part] = -logprobs[part] - job.scale * mean[:count]
                del d
            del p, cap_slope  # before the next chunk's
        ctx.job = job
        formed = gradients.formed if gradients is not None else (None, None, None)
        ctx.save_for_backward(hidden, weight, bias, targets, logprobs, entropy, predicted, *formed)
        if entropy is not None and job.entropy == "value":
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, entropy_slope: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, logprobs, entropy, predicted, *formed = ctx.saved_tensors
        factor = None if predicted is None else _common_factor(slope, predicted)
        if factor is not None:
            if factor != 1:
                formed = [x if x is None else x * factor for x in formed]
            return *formed, None, None
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


def _trained(*inputs: Tensor | None) -> bool:
    """Whether a gradient will be asked for."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)


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


def _asked(slope: Slope, logprobs: Tensor, part: slice) -> Tensor:
    """The slope that is predicted for a chunk, [n]."""
    predicted = slope(logprobs, part.start)
    if predicted.shape != logprobs.shape:
        raise UsageError(
            f"slope must return one number per token, {tuple(logprobs.shape)}; it returned {tuple(predicted.shape)}."
        )
    return predicted


def _common_factor(slope: Tensor, predicted: Tensor) -> float | None:
    """c, if slope is c * predicted; else None. [N], [N]."""
    a, b = slope.double(), predicted.double()
    tiny = torch.finfo(torch.float64).tiny
    factor = a.dot(b) / b.dot(b).clamp(min=tiny)  # exactly 1 if they are equal
    differences = (a - factor * b).abs()
    values = torch.stack([factor, differences.amax(), a.abs().amax()])
    best, error, largest = values.tolist()  # the one time that the host waits for the device
    return best if error <= AGREEMENT * largest else None  # comparisons with NaN are false


def _chunks(count: int, chunk: int, ends: Sequence[int] | None) -> Iterator[slice]:
    """At least one slice, of up to `chunk` tokens; with `ends` of whole rows, or of one row that is longer."""
    if chunk < 1:
        raise UsageError(f"chunk must be at least 1 token, got {chunk}.")
    if ends is None:
        for start in range(0, max(count, 1), chunk):
            yield slice(start, min(start + chunk, count))
        return
    last = ends[-1] if ends else 0
    if list(ends) != sorted(ends) or last != count:
        raise UsageError(f"ends must ascend to {count}, the number of tokens; got {shown(list(ends))}.")
    start = 0
    for end, following in pairwise([*ends, count + chunk + 1]):
        if end > start and following - start > chunk:
            yield slice(start, end)
            start = end


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
