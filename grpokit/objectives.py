"""Objectives: from two views of the same decisions and their advantages to a loss per decision.

An `Objective` is pure: (new, old, advantages, mask, reference) -> loss [b, t] and statistics [b, t]. It never
reduces: the trainer multiplies by `reduction_weights`, fixed before any slicing, and sums, so that micro-batches and
step slices add up to the whole batch's gradient. Masked decisions are replaced before any arithmetic, so that a NaN
under the mask stays there. `grpo`, `dapo`, ... at the end are the published combinations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from grpokit.errors import UsageError
from grpokit.types import Decisions

RatioKind: TypeAlias = Literal["token", "sequence"]
KLKind: TypeAlias = Literal["k1", "k2", "k3", "gaussian"]
Reduction: TypeAlias = Literal["sequence_mean", "token_mean", "fixed_length"]
Surrogate: TypeAlias = Callable[[Tensor, Tensor, Tensor], "Loss"]


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A loss per decision.

    Attributes:
        value: [b, t], zero under the mask, with gradient.
        stats: name -> [b, t] without gradient: "ratio", "clip_low", "clip_high", and "kl", "entropy" where known.
    """

    value: Tensor
    stats: Mapping[str, Tensor] = field(default_factory=dict)


def log_ratio(new: Tensor, old: Tensor, mask: Tensor, kind: RatioKind = "token") -> Tensor:
    """Log of the importance ratio new / old.

    Args:
        new, old: [b, t] log-probs in nats per action dimension.
        mask: [b, t] bool.
        kind: "token": one ratio per decision. A latent step stores its log-prob per dimension (the mean over C*H*W),
            so this is the per-dimension ratio of Flow-GRPO (Liu et al., 2025, arXiv:2505.05470) there. "sequence":
            the geometric mean over the row's decisions, GSPO (Zheng et al., 2025, arXiv:2507.18071, equation 7).

    Returns:
        [b, t], zero under the mask.
    """
    difference = torch.where(mask, new - old, 0.0)
    if kind == "token":
        return difference
    if kind == "sequence":
        length = mask.sum(-1, keepdim=True).clamp(min=1)
        mean = difference.sum(-1, keepdim=True) / length  # [b, t] -> [b, 1]
        return torch.where(mask, mean, 0.0)
    raise UsageError(f"The ratio must be 'token' or 'sequence', got {kind!r}.")


def clipped(
    ratio: Tensor,
    advantages: Tensor,
    *,
    clip_range: float = 0.2,
    clip_range_high: float | None = None,
    dual_clip: float | None = None,
) -> Loss:
    """PPO's pessimistic clipped surrogate: -min(r A, clip(r, 1 - low, 1 + high) A).

    From PPO (Schulman et al., 2017, arXiv:1707.06347, equation 7); a separate upper range is DAPO's "clip-higher"
    (Yu et al., 2025, arXiv:2503.14476); the lower bound c A on the objective where A < 0 is dual clip (Ye et al., 2020,
    arXiv:1912.09729, equation 5).

    Args:
        ratio: [b, t].
        advantages: broadcastable to [b, t].
        clip_range: how far below 1 the ratio may count.
        clip_range_high: how far above 1; None means as far as below.
        dual_clip: c > 1; a decision with A < 0 loses at most -c A.
    """
    high = clip_range if clip_range_high is None else clip_range_high
    if dual_clip is not None and dual_clip <= 1:
        raise UsageError(f"dual_clip must be greater than 1 (3 is usual), got {dual_clip}.")
    value = -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_range, 1 + high) * advantages)
    if dual_clip is not None:
        value = torch.where(advantages < 0, torch.minimum(value, -dual_clip * advantages), value)
    return Loss(
        value=value,
        stats={
            "clip_low": ((ratio < 1 - clip_range) & (advantages < 0)).detach(),
            "clip_high": ((ratio > 1 + high) & (advantages > 0)).detach(),
        },
    )


def capped(ratio: Tensor, advantages: Tensor, logprobs: Tensor, *, ratio_cap: float = 5.0) -> Loss:
    """CISPO: -min(r, cap) A log p with the weight detached, so that every decision keeps a gradient.

    From MiniMax-M1 (2025, arXiv:2506.13585, equation 4). `ratio_cap` bounds the ratio itself; it is not an epsilon.

    Args:
        ratio: [b, t].
        advantages: broadcastable to [b, t].
        logprobs: [b, t] of the new policy.
        ratio_cap: the largest ratio let through.
    """
    weight = ratio.detach().clamp(max=ratio_cap)
    return Loss(
        value=-weight * advantages * logprobs,
        stats={
            "clip_low": torch.zeros_like(weight, dtype=torch.bool),
            "clip_high": (ratio > ratio_cap).detach() & (advantages > 0),
        },
    )


def gated(ratio: Tensor, advantages: Tensor, *, tau_pos: float = 1.0, tau_neg: float = 1.05) -> Loss:
    """SAPO: a smooth gate, -(4 / tau) sigmoid(tau (r - 1)) A, in place of the clip.

    From "Soft adaptive policy optimization" (Gao et al., 2025, arXiv:2511.20347). tau is `tau_pos` where A > 0.

    Args:
        ratio: [b, t].
        advantages: broadcastable to [b, t].
        tau_pos: how fast the gate closes for A > 0.
        tau_neg: how fast it closes for A <= 0.
    """
    if tau_pos <= 0 or tau_neg <= 0:
        raise UsageError(f"SAPO's temperatures must be positive, got tau_pos={tau_pos} and tau_neg={tau_neg}.")
    tau = torch.full_like(ratio, tau_neg).masked_fill(advantages > 0, tau_pos)  # in the dtype of the ratio
    never = torch.zeros_like(ratio, dtype=torch.bool)
    return Loss(
        value=-torch.sigmoid(tau * (ratio - 1)) * (4 / tau) * advantages,
        stats={"clip_low": never, "clip_high": never},
    )


def kl_divergence(new: Decisions, reference: Decisions, mask: Tensor, kind: KLKind = "k3") -> Tensor:
    """KL of the new policy from the reference, per decision and action dimension: [b, t], zero under the mask.

    With d = log p_ref - log p_new at the sampled decision ("Approximating KL divergence", Schulman, 2020):
    k1 = -d is unbiased, but as a *loss* its expected gradient on-policy is zero; k2 = d^2 / 2; k3 = exp(d) - d - 1 is
    unbiased, never negative, and the default. "gaussian" is exact, from both views' mean and std:
    log(s_ref / s) + (s^2 + (m - m_ref)^2) / (2 s_ref^2) - 1/2, averaged over the decision's dimensions.

    A decision of D dimensions has the mean of their d, whose square is about 2 / D of the KL per dimension: there k2
    and k3 are D times too weak, and a trainer refuses them (see `Objective.check_dimensions`).

    Raises:
        UsageError: "gaussian" without mean and std, or an unknown kind.
    """
    if kind == "gaussian":
        if new.mean is None or new.std is None or reference.mean is None or reference.std is None:
            raise UsageError("kl 'gaussian' needs decisions with a mean and a std; this policy gives none: use k3.")
        mean, ref_mean = (_masked(x, mask, 0.0) for x in (new.mean, reference.mean))
        std, ref_std = (_masked(x, mask, 1.0) for x in (new.std, reference.std))
        variance = std.square() + (mean - ref_mean).square()
        exact = (ref_std / std).log() + variance / (2 * ref_std.square()) - 0.5
        return torch.where(mask, exact.flatten(2).mean(-1) if exact.ndim > 2 else exact, 0.0)
    d = _bounded(torch.where(mask, reference.logprobs - new.logprobs, 0.0))
    if kind == "k1":
        return -d
    if kind == "k2":
        return d.square() / 2
    if kind == "k3":
        return d.exp() - d - 1
    raise UsageError(f"kl must be 'k1', 'k2', 'k3' or 'gaussian', got {kind!r}.")


def _bounded(log_ratio: Tensor) -> Tensor:
    """Keep exp() and its gradient finite; e^20 is far beyond any clip."""
    return log_ratio.clamp(-20.0, 20.0)


def _masked(x: Tensor, mask: Tensor, value: float) -> Tensor:
    """x [b, t, ...] in fp32 or better, with `value` under the mask [b, t]."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.where(mask.reshape(*mask.shape, *[1] * (x.ndim - 2)), x, value)


def gaussian_logprobs(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log-density of Gaussian decisions per action dimension: x, mean [b, t, ...], std broadcastable -> [b, t].

    The *mean* over the dimensions, as published clip ranges assume: a sum over 65,536 of them has no usable fp32
    resolution. Computed in fp32 or better; std must be above 0, also where a mask hides the decision.
    """
    x, mean, std = (v.to(torch.promote_types(v.dtype, torch.float32)) for v in (x, mean, std))
    density = -((x - mean) / std).square() / 2 - std.log() - math.log(2 * math.pi) / 2
    return density.flatten(2).mean(-1) if density.ndim > 2 else density


def reduction_weights(mask: Tensor, reduction: Reduction, *, max_decisions: int) -> Tensor:
    """The constant that multiplies each decision's loss before everything is summed: [b, t] fp64, 0 under the mask.

    Args:
        mask: [b, t] of all rows of one optimizer step (the normaliser must not depend on how they are sliced).
        reduction: "sequence_mean": mean over rows of each row's mean (GRPO); "token_mean": mean over all decisions
            (DAPO); "fixed_length": sum / (rows * max_decisions) (Dr. GRPO).
        max_decisions: the most decisions that a row can have.
    """
    m = mask.to(torch.float64)
    if reduction == "sequence_mean":
        weights = m / (m.sum(-1, keepdim=True).clamp(min=1) * len(m))
    elif reduction == "token_mean":
        weights = m / m.sum().clamp(min=1)
    elif reduction == "fixed_length":
        weights = m / (len(m) * max_decisions)
    else:
        raise UsageError(f"The reduction must be 'sequence_mean', 'token_mean' or 'fixed_length', got {reduction!r}.")
    return weights


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A surrogate on the ratio, plus KL to the reference, minus an entropy bonus.

    Attributes:
        surrogate: (ratio [b, t], advantages [b, t], new log-probs [b, t]) -> Loss.
        ratio: "token" or "sequence" (see `log_ratio`).
        reduction: how the trainer sums up (see `reduction_weights`).
        kl: the estimator (see `kl_divergence`); "gaussian" where decisions have several dimensions.
        kl_coef: weight of the KL; 0 means that no reference is needed.
        entropy_coef: weight of the entropy bonus.
    """

    surrogate: Surrogate
    ratio: RatioKind = "token"
    reduction: Reduction = "sequence_mean"
    kl: KLKind = "k3"
    kl_coef: float = 0.0
    entropy_coef: float = 0.0

    @property
    def needs_reference(self) -> bool:
        """Whether a reference must be scored at all."""
        return self.kl_coef != 0

    @property
    def needs_moments(self) -> bool:
        """Whether the reference's mean and std are needed, not only its log-probs."""
        return self.needs_reference and self.kl == "gaussian"

    @property
    def whole_sequence(self) -> bool:
        """Whether a decision's loss depends on the row's other decisions."""
        return self.ratio == "sequence"

    def check_dimensions(self, action_dims: int) -> None:
        """Hold the KL's estimator against the dimensions of a decision (see `Rollout.action_dims`).

        Raises:
            UsageError: k2 or k3 where a decision has several dimensions.
        """
        if self.needs_reference and self.kl in ("k2", "k3") and action_dims > 1:
            raise UsageError(
                f"kl '{self.kl}' does not suit decisions of {action_dims:,} dimensions: their log-probs are means over "
                f"the dimensions, from which it makes about 1/{action_dims:,} of the KL. Set kl: gaussian, which is "
                "exact (k1 is right on average too, but as a loss it pulls nowhere)."
            )

    def __call__(
        self, new: Decisions, old: Decisions, advantages: Tensor, mask: Tensor, reference: Decisions | None = None
    ) -> Loss:
        """Loss per decision.

        Args:
            new: [b, t] with gradient.
            old: [b, t] of the policy that sampled.
            advantages: [b], or [b, t].
            mask: [b, t] bool.
            reference: [b, t]; required where `kl_coef` is not 0.
        """
        advantages = advantages[:, None] if advantages.ndim == 1 else advantages
        advantages = torch.where(mask, advantages.to(new.logprobs), 0.0)  # [b] -> [b, t]
        logprobs = torch.where(mask, new.logprobs, 0.0)
        ratio = _bounded(log_ratio(new.logprobs, old.logprobs, mask, self.ratio)).exp()
        surrogate = self.surrogate(ratio, advantages, logprobs)
        value = surrogate.value
        stats = {"ratio": ratio.detach(), **surrogate.stats}
        if self.needs_reference:
            if reference is None:
                raise UsageError(f"kl_coef is {self.kl_coef}, so the objective needs the reference's log-probs.")
            kl = kl_divergence(new, reference, mask, self.kl)
            value = value + self.kl_coef * kl
            stats["kl"] = kl.detach()
        if new.entropy is not None:
            entropy = torch.where(mask, new.entropy, 0.0)
            if self.entropy_coef != 0:  # else not even its gradient is touched: it may be infinite
                value = value - self.entropy_coef * entropy
            stats["entropy"] = entropy.detach()
        elif self.entropy_coef != 0:
            raise UsageError(f"entropy_coef is {self.entropy_coef}, but this policy's logprobs() gives no entropy.")
        return Loss(value=torch.where(mask, value, 0.0), stats=stats)


def grpo(
    *,
    ratio: RatioKind = "token",
    clip_range: float = 0.2,
    clip_range_high: float | None = None,
    dual_clip: float | None = None,
    reduction: Reduction = "sequence_mean",
    kl: KLKind = "k3",
    kl_coef: float = 0.0,
    entropy_coef: float = 0.0,
) -> Objective:
    """GRPO (DeepSeekMath, arXiv:2402.03300, equation 3): clipped token ratios, mean of sequence means."""

    def surrogate(ratio: Tensor, advantages: Tensor, logprobs: Tensor) -> Loss:
        return clipped(ratio, advantages, clip_range=clip_range, clip_range_high=clip_range_high, dual_clip=dual_clip)

    return Objective(
        surrogate=surrogate, ratio=ratio, reduction=reduction, kl=kl, kl_coef=kl_coef, entropy_coef=entropy_coef
    )


def dapo(
    *,
    ratio: RatioKind = "token",
    clip_range: float = 0.2,
    clip_range_high: float | None = 0.28,
    dual_clip: float | None = None,
    kl: KLKind = "k3",
    kl_coef: float = 0.0,
    entropy_coef: float = 0.0,
) -> Objective:
    """DAPO (Yu et al., 2025, arXiv:2503.14476): clip-higher and a mean over all tokens."""
    return grpo(
        ratio=ratio,
        clip_range=clip_range,
        clip_range_high=clip_range_high,
        dual_clip=dual_clip,
        reduction="token_mean",
        kl=kl,
        kl_coef=kl_coef,
        entropy_coef=entropy_coef,
    )


def dr_grpo(
    *,
    ratio: RatioKind = "token",
    clip_range: float = 0.2,
    clip_range_high: float | None = None,
    dual_clip: float | None = None,
    kl: KLKind = "k3",
    kl_coef: float = 0.0,
    entropy_coef: float = 0.0,
) -> Objective:
    """Dr. GRPO (Liu et al., 2025, arXiv:2503.20783): divides by a fixed length; pair it with advantage `centred`."""
    return grpo(
        ratio=ratio,
        clip_range=clip_range,
        clip_range_high=clip_range_high,
        dual_clip=dual_clip,
        reduction="fixed_length",
        kl=kl,
        kl_coef=kl_coef,
        entropy_coef=entropy_coef,
    )


def gspo(
    *,
    clip_range: float = 3e-4,
    clip_range_high: float | None = 4e-4,
    kl: KLKind = "k3",
    kl_coef: float = 0.0,
    entropy_coef: float = 0.0,
) -> Objective:
    """GSPO (Zheng et al., 2025, arXiv:2507.18071): one ratio per sequence, with the paper's narrow clip range."""
    return grpo(
        ratio="sequence",
        clip_range=clip_range,
        clip_range_high=clip_range_high,
        kl=kl,
        kl_coef=kl_coef,
        entropy_coef=entropy_coef,
    )


def cispo(
    *,
    ratio: RatioKind = "token",
    ratio_cap: float = 5.0,
    reduction: Reduction = "token_mean",
    kl: KLKind = "k3",
    kl_coef: float = 0.0,
    entropy_coef: float = 0.0,
) -> Objective:
    """CISPO (MiniMax-M1, 2025, arXiv:2506.13585): see `capped`."""

    def surrogate(ratio: Tensor, advantages: Tensor, logprobs: Tensor) -> Loss:
        return capped(ratio, advantages, logprobs, ratio_cap=ratio_cap)

    return Objective(
        surrogate=surrogate, ratio=ratio, reduction=reduction, kl=kl, kl_coef=kl_coef, entropy_coef=entropy_coef
    )


def sapo(
    *,
    ratio: RatioKind = "token",
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    reduction: Reduction = "sequence_mean",
    kl: KLKind = "k3",
    kl_coef: float = 0.0,
    entropy_coef: float = 0.0,
) -> Objective:
    """SAPO (Gao et al., 2025, arXiv:2511.20347): see `gated`."""

    def surrogate(ratio: Tensor, advantages: Tensor, logprobs: Tensor) -> Loss:
        return gated(ratio, advantages, tau_pos=tau_pos, tau_neg=tau_neg)

    return Objective(
        surrogate=surrogate, ratio=ratio, reduction=reduction, kl=kl, kl_coef=kl_coef, entropy_coef=entropy_coef
    )
