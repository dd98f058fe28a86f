"""On-policy distillation: the student moves towards a teacher at the decisions that it has drawn itself.

The teacher is the policy's reference, so it is whatever a policy can be held to: trained adapters (`policy.teachers`),
or its base or an average of its own weights, with guidance (`policy.reference_guidance`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpokit.divergence import kl_divergence
from grpokit.errors import UsageError
from grpokit.objectives import Loss, Objective
from grpokit.settings import NotNegative, Positive, RatioKind
from grpokit.types import Decisions


@dataclass(frozen=True, kw_only=True)
class OPD(Objective):
    """The KL of the policy from its teacher at each decision; rewards do not teach.

    Of a step of a flow it is exact, mean (m - m_teacher)^2 / (2 s^2), where a step of the ODE counts as one with s = 1:
    DiffusionOPD (ali-vilab, 2026). Of a token its gradient is that of -r A with A = log p_teacher - log p_old of the
    drawn token: "On-policy distillation" (Thinking Machines, 2025), and NeMo-RL; or it is exact, over all tokens. Of a
    noised copy it is mean (v - v_teacher)^2.

    Attributes:
        all_tokens: whether the distributions of tokens are compared as a whole, and not by the drawn one alone.
    """

    all_tokens: bool = False

    ratio: RatioKind = field(default="token", init=False)
    kl_coef: NotNegative = field(default=0.0, init=False)
    kl_bias_correction: bool = field(default=False, init=False)
    off_policy_mask_threshold: Positive | None = field(default=None, init=False)

    @property
    def needs_advantages(self) -> bool:
        """Never."""
        return False

    @property
    def reads_reference(self) -> bool:
        """Always: it is the teacher."""
        return True

    @property
    def compares_distributions(self) -> bool:
        """As `all_tokens` says."""
        return self.all_tokens

    @property
    def needs_reference_moments(self) -> bool:
        """Always: steps of a flow are compared by them, and tokens have none."""
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
    ) -> Loss:
        """See the class."""
        assert reference is not None
        never = torch.zeros_like(mask)
        stats = {"clip_low": never, "clip_high": never}
        if self.all_tokens:
            return self._whole(new, mask, stats)
        if new.mean is None:
            lead = torch.where(mask, reference.logprobs - old.logprobs, 0.0).detach()
            return Loss(value=-ratio * lead, stats={**stats, "opd/kl": -lead})
        kl = kl_divergence(new, reference, mask, "gaussian" if new.target is None else "velocity")
        return Loss(value=kl, stats={**stats, "opd/kl": kl.detach()})

    def _whole(self, new: Decisions, mask: Tensor, stats: dict[str, Tensor]) -> Loss:
        """The loss by the KL that the policy gives."""
        if new.kl is None:
            raise UsageError(
                "objective 'opd' with all_tokens compares distributions of tokens, and this policy gives no KL. Leave "
                "all_tokens out."
            )
        kl = torch.where(mask, new.kl, 0.0)
        return Loss(value=kl, stats={**stats, "opd/kl": kl.detach()})
