"""Objectives: from two views of the same decisions and their advantages to a loss per decision.

An `Objective` is pure: (new, old, advantages, mask, reference) -> loss [b, t] and statistics [b, t]. It does not
reduce: the trainer multiplies by `reduction_weights`, which are fixed before any slicing, and sums. So micro-batches
and slices add up to the whole batch's gradient. Masked decisions are replaced before any arithmetic, so a NaN under the
mask stays there. A new objective subclasses `Objective` and writes its surrogate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpokit.errors import UsageError
from grpokit.knobs import ClipSettings, KLKind, ObjectiveSettings, Positive, RatioKind, Reduction
from grpokit.types import Decisions


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A loss per decision.

    Attributes:
        value: [b, t], zero under the mask, with gradient.
        stats: name -> [b, t] without gradient: "ratio", "clip_low", "clip_high", and perhaps "kl" and "entropy".
    """

    value: Tensor
    stats: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Objective(ObjectiveSettings, ABC):
    """A surrogate on the importance ratio, plus KL to the reference, minus an entropy bonus."""

    @abstractmethod
    def surrogate(self, ratio: Tensor, advantages: Tensor, logprobs: Tensor) -> Loss:
        """The policy loss: ratio, advantages and new log-probs [b, t] -> [b, t], with "clip_low" and "clip_high".

        It is 0 where the advantage is 0: filters leave a decision out by this. A statistic with "/" in its name becomes
        a metric of that name.
        """

    @property
    def needs_reference(self) -> bool:
        """Whether the reference's log-probs are needed."""
        return self.kl_coef != 0

    @property
    def needs_reference_moments(self) -> bool:
        """Whether the reference's mean and std are needed, not only its log-probs."""
        return self.needs_reference and self.kl in ("gaussian", "velocity")

    @property
    def needs_old_moments(self) -> bool:
        """Whether the old mean is needed, not only the old log-probs."""
        return self.ratio == "guard"

    @property
    def needs_moments(self) -> bool:
        """Whether the loss reads the new mean and std."""
        return self.needs_reference_moments or self.needs_old_moments

    @property
    def whole_sequence(self) -> bool:
        """Whether a decision's loss depends on the row's other decisions."""
        return self.ratio == "sequence" or self.off_policy_mask_threshold is not None

    def check_dimensions(self, action_dims: int) -> None:
        """Check that the KL's estimator suits the dimensions of a decision (see `Rollout.action_dims`).

        Raises:
            UsageError: k2, k3 or a bias correction, with decisions of several dimensions.
        """
        if self.needs_reference and self.kl in ("k2", "k3") and action_dims > 1:
            raise UsageError(
                f"kl '{self.kl}' does not suit decisions of {action_dims:,} dimensions: their log-probs are means over "
                f"the dimensions, so it gives about 1/{action_dims:,} of the KL. Set kl: gaussian, which is exact (k1 "
                "is right on average too, but as a loss its expected gradient is zero)."
            )
        if self.needs_reference and self.kl_bias_correction and action_dims > 1:
            raise UsageError(
                "kl_bias_correction weights the KL by a decision's importance ratio, but here a decision has "
                f"{action_dims:,} dimensions, and the ratio is that of one. Leave it out, and set kl: gaussian."
            )

    def __call__(
        self,
        new: Decisions,
        old: Decisions,
        advantages: Tensor,
        mask: Tensor,
        reference: Decisions | None = None,
        *,
        correction: Tensor | None = None,
    ) -> Loss:
        """Loss per decision.

        The off-policy mask and the KL's correction are those of DeepSeek-V3.2 (2025, arXiv:2512.02556).

        Args:
            new: [b, t] with gradient.
            old: [b, t] of the policy that sampled.
            advantages: [b], or [b, t].
            mask: [b, t] bool.
            reference: [b, t]; required if `kl_coef` is not 0.
            correction: [b, t], factors of the surrogate only, without gradient; or None.
        """
        advantages = advantages[:, None] if advantages.ndim == 1 else advantages
        advantages = torch.where(mask, advantages.to(new.logprobs), 0.0)  # [b] -> [b, t]
        stats: dict[str, Tensor] = {}
        if self.off_policy_mask_threshold is not None:
            drift = -log_ratio(new.detach(), old, mask, "sequence")  # [b, t], the same for a row
            unlikely = (advantages < 0) & (drift > self.off_policy_mask_threshold)
            advantages = torch.where(unlikely, 0.0, advantages)
            stats["off_policy_mask/mean"] = unlikely
        logprobs = torch.where(mask, new.logprobs, 0.0)
        ratio = _bounded(log_ratio(new, old, mask, self.ratio)).exp()
        surrogate = self.surrogate(ratio, advantages, logprobs)
        value = surrogate.value if correction is None else surrogate.value * correction.to(surrogate.value)
        stats |= {"ratio": ratio.detach(), **surrogate.stats}
        if self.needs_reference:
            if reference is None:
                raise UsageError(f"kl_coef is {self.kl_coef}, so the objective needs the reference's log-probs.")
            kl = kl_divergence(new, reference, mask, self.kl) * (ratio if self.kl_bias_correction else 1.0)
            value = value + self.kl_coef * kl
            stats["kl"] = kl.detach()
        if new.entropy is not None:
            entropy = torch.where(mask, new.entropy, 0.0)
            if self.entropy_coef != 0:  # not just multiplied by 0, since its gradient may be infinite
                value = value - self.entropy_coef * entropy
            stats["entropy"] = entropy.detach()
        elif self.entropy_coef != 0:
            raise UsageError(f"entropy_coef is {self.entropy_coef}, but this policy's logprobs() gives no entropy.")
        return Loss(value=torch.where(mask, value, 0.0), stats=stats)


@dataclass(frozen=True, kw_only=True)
class GRPO(ClipSettings, Objective):
    """Clipped ratios, and the mean of sequence means: -min(r A, clip(r, 1 - low, 1 + high) A).

    From DeepSeekMath (Shao et al., 2024, arXiv:2402.03300, equation 3), whose surrogate is PPO's (Schulman et al.,
    2017, arXiv:1707.06347, equation 7). Dual clip is Ye et al. (2020, arXiv:1912.09729, equation 5): for A < 0 the
    ratio counts as `dual_clip` at most. INTELLECT-2 (2025, arXiv:2505.07291) and TRL call the same bound delta.
    """

    def surrogate(self, ratio: Tensor, advantages: Tensor, logprobs: Tensor) -> Loss:
        """See the class."""
        low = 1 - self.clip_range
        high = 1 + (self.clip_range if self.clip_range_high is None else self.clip_range_high)
        value = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
        if self.dual_clip is not None:
            value = torch.where(advantages < 0, torch.minimum(value, -self.dual_clip * advantages), value)
        clip_low, clip_high = (ratio < low) & (advantages < 0), (ratio > high) & (advantages > 0)
        return Loss(value=value, stats={"clip_low": clip_low.detach(), "clip_high": clip_high.detach()})


@dataclass(frozen=True, kw_only=True)
class DAPO(GRPO):
    """Clip-higher and a mean over all tokens: DAPO (Yu et al., 2025, arXiv:2503.14476)."""

    clip_range_high: Positive | None = 0.28
    reduction: Reduction = field(default="token_mean", init=False)


@dataclass(frozen=True, kw_only=True)
class DrGRPO(GRPO):
    """Divides by a fixed length; use it with advantage `centred`: Dr. GRPO (Liu et al., 2025, arXiv:2503.20783)."""

    reduction: Reduction = field(default="fixed_length", init=False)


@dataclass(frozen=True, kw_only=True)
class GSPO(GRPO):
    """One ratio per sequence, with the paper's narrow clip range: GSPO (Zheng et al., 2025, arXiv:2507.18071)."""

    ratio: RatioKind = field(default="sequence", init=False)
    clip_range: Positive = 3e-4
    clip_range_high: Positive | None = 4e-4


def log_ratio(new: Decisions, old: Decisions, mask: Tensor, kind: RatioKind = "token") -> Tensor:
    """Log of the importance ratio new / old.

    Args:
        new: [b, t], with log-probs in nats per action dimension.
        old: the same decisions, as the policy that drew them sees them.
        mask: [b, t] bool.
        kind: "token": one ratio per decision; for a latent step, whose log-prob is the mean over C*H*W dimensions,
            the per-dimension ratio of Flow-GRPO (Liu et al., 2025, arXiv:2505.05470). "sequence": the geometric mean
            over the row's decisions, GSPO (Zheng et al., 2025, arXiv:2507.18071, equation 7). "guard": for Gaussian
            decisions of equal std s, s (log p_new - log p_old + d / (2 s^2)) with d the mean square of the difference
            of the means, GRPO-Guard (Wang et al., 2025, arXiv:2510.22319). The plain log-ratio is -d / (2 s^2) on
            average, so it falls with every update. The guarded one is the mean of e (m_new - m_old) over the
            dimensions, with e the step's standard normals: 0 on average, whatever the step's s.

    Returns:
        [b, t], zero under the mask.

    Raises:
        UsageError: "guard" without means and std, or an unknown kind.
    """
    difference = torch.where(mask, new.logprobs - old.logprobs, 0.0)
    if kind == "token":
        return difference
    if kind == "guard":
        if new.mean is None or new.std is None or old.mean is None:
            raise UsageError(
                "ratio 'guard' needs decisions with a mean and a std, but this policy gives none: use 'token'."
            )
        mean, old_mean, std = (_masked(x, mask, v) for x, v in ((new.mean, 0.0), (old.mean, 0.0), (new.std, 1.0)))
        drift = _per_dimension((mean - old_mean).square() / (2 * std.square()))
        return torch.where(mask, _per_dimension(std) * (difference + drift), 0.0)
    if kind == "sequence":
        length = mask.sum(-1, keepdim=True).clamp(min=1)
        mean = difference.sum(-1, keepdim=True) / length  # [b, t] -> [b, 1]
        return torch.where(mask, mean, 0.0)
    raise UsageError(f"The ratio must be 'token', 'sequence' or 'guard', got {kind!r}.")


def kl_divergence(new: Decisions, reference: Decisions, mask: Tensor, kind: KLKind = "k3") -> Tensor:
    """KL of the new policy from the reference, per decision and action dimension: [b, t], zero under the mask.

    With d = log p_ref - log p_new at the sampled decision ("Approximating KL divergence", Schulman, 2020):
    k1 = -d is unbiased, but as a *loss* its expected gradient on-policy is zero; k2 = d^2 / 2; k3 = exp(d) - d - 1 is
    unbiased, never negative, and the default. "gaussian" is exact, from the mean and std of both:
    log(s_ref / s) + (s^2 + (m - m_ref)^2) / (2 s_ref^2) - 1/2, averaged over the decision's dimensions. "velocity" is
    no KL but a penalty that treats all steps of a flow alike: (v - v_ref)^2, averaged over the dimensions, where
    v - v_ref = (m - m_ref) / v_coef.

    With D dimensions, d is a mean over them, and its square is about 2 / D of the KL per dimension. So k2 and k3 are D
    times too weak there, and a trainer refuses them (see `Objective.check_dimensions`).

    Raises:
        UsageError: "gaussian" without mean and std, "velocity" without mean and v_coef, or an unknown kind.
    """
    if kind == "velocity":
        if new.mean is None or new.v_coef is None or reference.mean is None:
            raise UsageError("kl 'velocity' needs the steps of a flow (see grpokit.flow.score): use gaussian or k3.")
        mean, ref_mean, v_coef = (
            _masked(x, mask, v) for x, v in ((new.mean, 0.0), (reference.mean, 0.0), (new.v_coef, 1.0))
        )
        return torch.where(mask, _per_dimension(((mean - ref_mean) / v_coef).square()), 0.0)
    if kind == "gaussian":
        if new.mean is None or new.std is None or reference.mean is None or reference.std is None:
            raise UsageError("kl 'gaussian' needs decisions with a mean and a std, but this policy gives none: use k3.")
        mean, ref_mean = (_masked(x, mask, 0.0) for x in (new.mean, reference.mean))
        std, ref_std = (_masked(x, mask, 1.0) for x in (new.std, reference.std))
        # (s^2 + d^2) / (2 s_ref^2) - 1/2, written so that nothing cancels where both are nearly the same
        excess = (std - ref_std) * (std + ref_std) + (mean - ref_mean).square()
        exact = (ref_std / std).log() + excess / (2 * ref_std.square())
        return torch.where(mask, _per_dimension(exact), 0.0)
    d = _bounded(torch.where(mask, reference.logprobs - new.logprobs, 0.0))
    if kind == "k1":
        return -d
    if kind == "k2":
        return d.square() / 2
    if kind == "k3":
        return d.exp() - d - 1
    raise UsageError(f"kl must be 'k1', 'k2', 'k3', 'gaussian' or 'velocity', got {kind!r}.")


def _bounded(log_ratio: Tensor) -> Tensor:
    """Keep exp() and its gradient finite; e^20 is far beyond any clip range."""
    return log_ratio.clamp(-20.0, 20.0)


def _per_dimension(x: Tensor) -> Tensor:
    """The mean over a decision's dimensions: [b, t, ...] -> [b, t]."""
    return x.flatten(2).mean(-1) if x.ndim > 2 else x


def _masked(x: Tensor, mask: Tensor, value: float) -> Tensor:
    """x [b, t, ...] in fp32 or better, with `value` under the mask [b, t]."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.where(mask.reshape(*mask.shape, *[1] * (x.ndim - 2)), x, value)
