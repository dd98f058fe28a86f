"""Objectives: from two views of the same decisions and their advantages to a loss per decision.

An `Objective` is pure: (new, old, advantages, mask, reference) -> loss [b, t] and statistics [b, t]. It does not
reduce: the trainer multiplies by `reduction_weights`, which are fixed before any slicing, and sums. So micro-batches
and slices add up to the whole batch's gradient. Masked decisions are replaced before any arithmetic, so a NaN under the
mask stays there. A new objective subclasses `Objective` and writes its policy loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from grpokit.divergence import bound_log_ratio, kl_divergence, log_ratio
from grpokit.errors import UsageError, brief
from grpokit.settings import ClipSettings, ObjectiveSettings, Positive, RatioKind, Reduction
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


def reduction_weights(mask: Tensor, reduction: Reduction, *, rows: int, decisions: int, max_decisions: int) -> Tensor:
    """The constant factor of each decision's loss in the sum over the batch: [b, t] fp64, 0 under the mask.

    The means are those of GRPO ("sequence_mean"), DAPO ("token_mean"), Dr. GRPO ("fixed_length") and LUSPO
    ("sequence_sum"). `rows` and `decisions` are those of the optimizer step in all processes, `max_decisions` the most
    of a row; the mask has whole rows, so that no normaliser depends on slices.
    """
    m = mask.to(torch.float64)
    if reduction == "sequence_mean":
        lengths = m.sum(-1, keepdim=True).clamp(min=1)  # [b, 1]
        return m / (lengths * max(rows, 1))
    normalisers = {"token_mean": decisions, "fixed_length": rows * max_decisions, "sequence_sum": rows}
    return m / max(normalisers[reduction], 1)


@dataclass(frozen=True, kw_only=True)
class Objective(ObjectiveSettings, ABC):
    """A policy loss on the importance ratio, plus a KL to the reference, minus an entropy bonus."""

    @abstractmethod
    def policy_loss(self, ratio: Tensor, advantages: Tensor, mask: Tensor, new: Decisions, old: Decisions) -> Loss:
        """The policy loss of each decision, with the statistics "clip_low" and "clip_high".

        It is 0 where the advantage is 0: filters leave a decision out by this. A statistic with "/" in its name becomes
        a metric of that name. An objective that `reads_reference` is called with `reference`, and one of `whole_groups`
        with `groups`, both by keyword.

        Args:
            ratio: [b, t] importance ratios; 1 under the mask.
            advantages: [b, t]; 0 under the mask.
            mask: [b, t] bool, the decisions that count.
            new: [b, t] with gradient; its log-probs are 0 under the mask, other fields are as the policy gave them.
            old: [b, t] of the policy that sampled, as the policy gave them.
        """

    @property
    def needs_advantages(self) -> bool:
        """Whether rewards teach. If not, they are only measured, and a run may have none."""
        return True

    @property
    def reads_reference(self) -> bool:
        """Whether the policy loss compares with the reference: [b, t], moments as of `needs_reference_moments`."""
        return False

    @property
    def compares_distributions(self) -> bool:
        """Whether the policy loss reads `new.kl`, from the reference's whole distribution at each decision.

        Not beside `whole_sequence` or `whole_groups`, whose second pass does not compare again.
        """
        return False

    @property
    def needs_reference(self) -> bool:
        """Whether the reference's log-probs are needed."""
        return self.kl_coef != 0 or self.reads_reference

    @property
    def needs_reference_moments(self) -> bool:
        """Whether the reference's mean and std are needed, not only its log-probs."""
        return self.kl_coef != 0 and self.kl in ("gaussian", "velocity")

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

    @property
    def whole_groups(self) -> bool:
        """Whether a decision's loss depends on the other rows of its group. It then takes a second pass."""
        return False

    def check_action_dims(self, action_dims: int) -> None:
        """Check that the KL's estimator suits the dimensions of a decision (see `Rollout.action_dims`).

        Raises:
            UsageError: k2, k3 or a bias correction, with decisions of several dimensions.
        """
        if self.kl_coef == 0 or action_dims == 1:
            return
        if self.kl in ("k2", "k3"):
            raise UsageError(
                f"kl '{self.kl}' does not suit decisions of {action_dims:,} dimensions: their log-probs are means over "
                f"the dimensions, so it gives about 1/{action_dims:,} of the KL. Set kl: gaussian, which is exact, or "
                "kl: velocity for a flow with matching (k1 is right on average too, but as a loss its expected "
                "gradient is zero)."
            )
        if self.kl_bias_correction:
            raise UsageError(
                "kl_bias_correction weights the KL by a decision's importance ratio, but here a decision has "
                f"{action_dims:,} dimensions, and the ratio is per dimension. Leave it out, and set kl: gaussian."
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
        kl_weights: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> Loss:
        """Loss per decision.

        The off-policy mask and the KL's correction are those of DeepSeek-V3.2 (2025, arXiv:2512.02556).

        Args:
            new: [b, t] with gradient.
            old: [b, t] of the policy that sampled.
            advantages: [b], or [b, t].
            mask: [b, t] bool.
            reference: [b, t]; required if `needs_reference`.
            correction: [b, t], factors of the policy loss only, without gradient; or None.
            kl_weights: [b], factors of the KL of whole rows, which is left out where they are 0; or None.
            groups: [b] int64, equal where rows belong together; required if `whole_groups`.
        """
        if self.needs_advantages:
            check_density(new)
        advantages = advantages[:, None] if advantages.ndim == 1 else advantages
        advantages = torch.where(mask, advantages.to(new.logprobs), 0.0)  # [b] -> [b, t]
        stats: dict[str, Tensor] = {}
        if self.off_policy_mask_threshold is not None:
            drift = -log_ratio(new.detach(), old, mask, "sequence")  # [b, t], the same for a row
            unlikely = (advantages < 0) & (drift > self.off_policy_mask_threshold)
            advantages = torch.where(unlikely, 0.0, advantages)
            stats["off_policy_mask/mean"] = unlikely
        ratio = bound_log_ratio(log_ratio(new, old, mask, self.ratio)).exp()
        unmasked = replace(new, logprobs=torch.where(mask, new.logprobs, 0.0))
        loss = self.policy_loss(ratio, advantages, mask, unmasked, old, **self._further(reference, groups))
        self._check_loss(loss, new)
        value = loss.value if correction is None else loss.value * correction.to(loss.value)
        stats |= {"ratio": ratio.detach(), **loss.stats}
        if self.kl_coef != 0:
            assert reference is not None
            kl = self._kl(new, reference, mask, kl_weights)
            if self.kl_bias_correction:
                kl = kl * ratio
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

    def _further(self, reference: Decisions | None, groups: Tensor | None) -> dict[str, Any]:
        """What else the policy loss reads, by keyword.

        Raises:
            UsageError: there is no reference.
        """
        if self.needs_reference and reference is None:
            raise UsageError(f"{type(self).__name__} needs the reference's log-probs. Pass them as reference=.")
        further: dict[str, Any] = {"reference": reference} if self.reads_reference else {}
        if self.whole_groups:
            further["groups"] = groups
        return further

    def _check_loss(self, loss: object, new: Decisions) -> None:
        """Refuse what would be broadcast, or would teach nothing, without a word."""
        name = f"policy_loss() of {type(self).__name__}"
        if not isinstance(loss, Loss) or not isinstance(loss.value, Tensor):
            raise UsageError(f"{name} gave {brief(loss)}; expected a grpokit.objectives.Loss.")
        expected = tuple(new.logprobs.shape)
        for what, values in {"loss": loss.value, **loss.stats}.items():
            if tuple(values.shape) != expected:
                raise UsageError(
                    f"{name} gave '{what}' the shape {tuple(values.shape)}; expected {expected}, one for each "
                    "decision. The trainer averages them."
                )
        if new.logprobs.requires_grad and not loss.value.requires_grad:
            raise UsageError(f"{name} gave a loss without a gradient. Compute it from `ratio` or `new`, not detached.")

    def _kl(self, new: Decisions, reference: Decisions, mask: Tensor, weights: Tensor | None) -> Tensor:
        """The KL of each decision [b, t], times the weights of its row."""
        if weights is None:
            return kl_divergence(new, reference, mask, self.kl)
        weights = weights[:, None].to(new.logprobs)  # [b] -> [b, 1]
        return weights * kl_divergence(new, reference, mask & (weights != 0), self.kl)


def check_density(new: Decisions) -> None:
    """Refuse steps that are not drawn at random, whose log-probs have no gradient.

    Raises:
        UsageError: says which samplers have noise.
    """
    if new.mean is not None and new.mean.requires_grad and not new.logprobs.requires_grad:
        raise UsageError(
            "Steps of the ODE are not drawn at random, so they have no log-probs to train. Take a sampler with noise "
            "(policy.sampler=flow-sde) or policy.matching. Only objective opd compares such steps."
        )


@dataclass(frozen=True, kw_only=True)
class GRPO(ClipSettings, Objective):
    """Clipped ratios, and the mean of sequence means: -min(r A, clip(r, 1 - low, 1 + high) A).

    From DeepSeekMath (Shao et al., 2024, arXiv:2402.03300, equation 3), whose surrogate is PPO's (Schulman et al.,
    2017, arXiv:1707.06347, equation 7). Dual clip is Ye et al. (2020, arXiv:1912.09729, equation 5): for A < 0 the
    ratio counts as `dual_clip` at most. INTELLECT-2 (2025, arXiv:2505.07291) and TRL call the same bound delta.
    """

    def policy_loss(self, ratio: Tensor, advantages: Tensor, mask: Tensor, new: Decisions, old: Decisions) -> Loss:
        """See the class."""
        low = 1 - self.clip_range
        high = 1 + (self.clip_range if self.clip_range_high is None else self.clip_range_high)
        value = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
        if self.dual_clip is not None:
            bounded_value = torch.minimum(value, -self.dual_clip * advantages)
            value = torch.where(advantages < 0, bounded_value, value)
        clip_low = (ratio < low) & (advantages < 0)
        clip_high = (ratio > high) & (advantages > 0)
        return Loss(value=value, stats={"clip_low": clip_low, "clip_high": clip_high})


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
