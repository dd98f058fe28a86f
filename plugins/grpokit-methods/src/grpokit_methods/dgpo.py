"""DGPO: the good samples of a group are preferred to its bad ones, as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpokit.builtin.more_objectives import check_copies
from grpokit.errors import UsageError
from grpokit.group_statistics import Groups
from grpokit.objectives import Loss, Objective
from grpokit.settings import Positive, RatioKind
from grpokit.types import Decisions
from grpokit_methods.copies import velocity_error


@dataclass(frozen=True, kw_only=True)
class DGPO(Objective):
    """sigmoid(s) A d, with d the error of a noised copy and s = beta / G times the sum of A (d - d_ref) over the group.

    The sigmoid has no gradient. d_ref is the reference's error, so s is below 0 where the policy already prefers the
    group's good samples, which then count less. A copy whose d has left a range around that of the old policy, in the
    direction of its advantage, has no gradient. From DGPO ("Reinforcing diffusion models by direct group preference
    optimization", Luo et al., 2025, arXiv:2510.08425), which compares copies with the same noise: set
    `matching: {shared_noise: true, weight: uniform}`.

    Attributes:
        beta: how sharply preferences count.
        clip_range: how far exp(d_old - d) may be from 1.
    """

    beta: Positive = 100.0
    clip_range: Positive = 0.05
    ratio: RatioKind = field(default="token", init=False)
    off_policy_mask_threshold: Positive | None = field(default=None, init=False)

    @property
    def reads_reference(self) -> bool:
        """Always."""
        return True

    @property
    def needs_moments(self) -> bool:
        """Always: what is compared are predictions of finished samples."""
        return True

    @property
    def whole_groups(self) -> bool:
        """Always: the preference is the group's."""
        return True

    def policy_loss(
        self,
        ratio: Tensor,
        advantages: Tensor,
        mask: Tensor,
        new: Decisions,
        old: Decisions,
        *,
        reference: Decisions | None = None,
        groups: Tensor | None = None,
    ) -> Loss:
        """See the class.

        Raises:
            UsageError: decisions that are not noised copies, or copies whose errors are weighted.
        """
        check_copies(new, "objective 'dgpo' compares errors of predictions")
        assert reference is not None
        assert groups is not None
        error = -new.logprobs  # [b, t]
        unweighted = velocity_error(new, new, mask).square().mean(-1)
        if not torch.allclose(error, unweighted, rtol=1e-2, equal_nan=True):
            raise UsageError(
                "objective 'dgpo' compares errors that weigh the same at all levels of noise, and here matching.weight "
                "weighs them. Set policy.matching={times: 4, weight: uniform, shared_noise: true}."
            )
        reference_error = -torch.where(mask, reference.logprobs, 0.0)
        with torch.no_grad():
            preference = self.beta * Groups(groups).mean(advantages * (error - reference_error), mask)
            weight = torch.sigmoid(preference)
            too_high = (advantages > 0) & (ratio > 1 + self.clip_range)
            too_low = (advantages < 0) & (ratio < 1 - self.clip_range)
        moving = torch.where(too_high | too_low, error.detach(), error)
        stats = {"clip_low": too_low, "clip_high": too_high, "dgpo/weight": weight}
        return Loss(value=weight * advantages * moving, stats=stats)
