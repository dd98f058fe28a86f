"""CRD: what a policy prefers inside a group follows what the reward prefers there."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpokit.builtin.more_objectives import check_copies, normalised_error
from grpokit.group_statistics import Groups
from grpokit.objectives import Loss, Objective
from grpokit.settings import Positive, RatioKind
from grpokit.types import Decisions
from grpokit_methods.copies import velocity_error


@dataclass(frozen=True, kw_only=True)
class CRD(Objective):
    """bound / beta (beta (r - r_group) - (R - R_group))^2, with means over the group, which have no gradient.

    R = clip(A / bound, -1, 1) / 2 + 1/2 is the reward. r = E_old - E is the policy's own, with E the mean square of the
    velocity's error at a noised copy over its mean distance, which is detached and at least 1e-5. Inside a group the
    unknown constant of the optimal policy cancels. The old policy is that of `old_ema`, which also draws; public code
    has an average for each. A copy with A = 0 is left out. From "Diffusion reinforcement learning via centered reward
    distillation" (2026, arXiv:2603.14128).

    Attributes:
        beta: how strongly r counts: it settles where its differences are 1 / beta of R's.
        advantage_bound: the advantage from which on a sample is all good, with R = 1.
        temperature: centres weigh samples by softmax(R / temperature), and half of the loss has centres with
            softmax(-R / temperature); None: all weigh the same.
    """

    beta: Positive = 1.0
    advantage_bound: Positive = 5.0
    temperature: Positive | None = None
    ratio: RatioKind = field(default="token", init=False)
    off_policy_mask_threshold: Positive | None = field(default=None, init=False)

    @property
    def needs_old_moments(self) -> bool:
        """Always: the old policy's errors are those of its means."""
        return True

    @property
    def whole_groups(self) -> bool:
        """Always: rewards are compared inside the group."""
        return True

    def policy_loss(
        self,
        ratio: Tensor,
        advantages: Tensor,
        mask: Tensor,
        new: Decisions,
        old: Decisions,
        *,
        groups: Tensor | None = None,
    ) -> Loss:
        """See the class.

        Raises:
            UsageError: decisions that are not noised copies.
        """
        check_copies(new, "objective 'crd' compares errors of predictions")
        assert groups is not None
        error = normalised_error(velocity_error(new, new, mask))
        before = normalised_error(velocity_error(old, new, mask)).detach()
        own = before - error  # [b, t]
        share = (advantages.to(own) / self.advantage_bound).clamp(-1, 1)
        given = share / 2 + 0.5
        signs = (0,) if self.temperature is None else (1, -1)
        by_group = Groups(groups)
        distances = [self._distance(own, given, mask, by_group, sign) for sign in signs]
        value = torch.stack(distances).mean(0) * self.advantage_bound / self.beta
        value = torch.where(mask & (advantages != 0), value, 0.0)
        never = torch.zeros_like(mask)
        stats = {"clip_low": never, "clip_high": never, "crd/own_reward": own.detach()}
        return Loss(value=value, stats=stats)

    def _distance(self, own: Tensor, given: Tensor, mask: Tensor, groups: Groups, sign: int) -> Tensor:
        """The squared distance of both rewards from the group's centre, whose weights have this sign: [b, t]."""
        weights = torch.ones_like(given)
        if self.temperature is not None:
            exponents = sign * given.double() / self.temperature
            weights = (exponents - groups.max(exponents, mask)).exp()
        total = groups.mean(weights, mask)
        own_centre = groups.mean(weights * own.detach(), mask) / total
        given_centre = groups.mean(weights * given, mask) / total
        return (self.beta * (own - own_centre) - (given - given_centre)).square()
