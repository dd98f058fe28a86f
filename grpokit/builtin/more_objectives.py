"""More objectives: each is a policy loss of its own, or new defaults for another one.

They use only what a third party may import. `docs/reference/objectives.md` has the table of all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpokit.divergence import log_ratio, policy_divergence
from grpokit.errors import UsageError
from grpokit.objectives import GRPO, GSPO, Loss, Objective
from grpokit.settings import NotNegative, Positive, RatioKind, Reduction
from grpokit.types import Decisions


@dataclass(frozen=True, kw_only=True)
class BNPO(GRPO):
    """GRPO with a mean over all tokens: the loss type `bnpo` of TRL (1.16).

    TRL divides by the tokens of one micro-batch, so there the size of a micro-batch changes the result. Here it is the
    tokens of the optimizer step, as in TRL with a single micro-batch.
    """

    reduction: Reduction = field(default="token_mean", init=False)


@dataclass(frozen=True, kw_only=True)
class LUSPO(GSPO):
    """GSPO with each sequence's loss times its length: LUSPO (Liu et al., 2026, arXiv:2602.05261)."""

    reduction: Reduction = field(default="sequence_sum", init=False)


@dataclass(frozen=True, kw_only=True)
class CISPO(Objective):
    """-min(r, cap) A log p with the weight detached, so every decision has a gradient.

    From MiniMax-M1 (2025, arXiv:2506.13585, equation 4).

    Attributes:
        ratio_cap: the largest weight; a bound of the ratio itself, not a distance from 1.
    """

    ratio_cap: Positive = 5.0
    reduction: Reduction = "token_mean"

    def policy_loss(self, ratio: Tensor, advantages: Tensor, mask: Tensor, new: Decisions, old: Decisions) -> Loss:
        """See the class."""
        weight = ratio.detach().clamp(max=self.ratio_cap)
        clip_high = (ratio > self.ratio_cap) & (advantages > 0)
        stats = {**_unclipped(ratio), "clip_high": clip_high.detach()}
        return Loss(value=-weight * advantages * new.logprobs, stats=stats)


@dataclass(frozen=True, kw_only=True)
class SAPO(Objective):
    """A smooth gate in place of the clip: -(4 / tau) sigmoid(tau (r - 1)) A.

    From "Soft adaptive policy optimization" (Gao et al., 2025, arXiv:2511.20347).

    Attributes:
        tau_pos: the steepness of the gate for A > 0.
        tau_neg: the steepness for A <= 0.
    """

    tau_pos: Positive = 1.0
    tau_neg: Positive = 1.05

    def policy_loss(self, ratio: Tensor, advantages: Tensor, mask: Tensor, new: Decisions, old: Decisions) -> Loss:
        """See the class."""
        tau = torch.where(advantages > 0, self.tau_pos, ratio.new_tensor(self.tau_neg))
        value = -torch.sigmoid(tau * (ratio - 1)) * (4 / tau) * advantages
        return Loss(value=value, stats=_unclipped(ratio))


@dataclass(frozen=True, kw_only=True)
class VESPO(Objective):
    """-phi(w) A log p with a detached, smooth weight of the whole sequence: phi(w) = w^k exp(lambda (1 - w)).

    w is the product of the row's importance ratios, not their geometric mean; phi(1) = 1. From VESPO ("Variational
    sequence-level soft policy optimization", 2026, arXiv:2602.10693). As in TRL, log w lies between log(1e-8) and 20.

    Attributes:
        k_pos: for A >= 0, the power of w: how fast the weight falls where the ratio is small.
        lambda_pos: for A >= 0, the decay: how fast it falls where the ratio is large.
        k_neg: the power for A < 0.
        lambda_neg: the decay for A < 0.
    """

    k_pos: NotNegative = 2.0
    lambda_pos: Positive = 3.0
    k_neg: NotNegative = 3.0
    lambda_neg: Positive = 2.0
    ratio: RatioKind = field(default="token", init=False)
    reduction: Reduction = "token_mean"

    @property
    def whole_sequence(self) -> bool:
        """Always: the weight is the row's."""
        return True

    def policy_loss(self, ratio: Tensor, advantages: Tensor, mask: Tensor, new: Decisions, old: Decisions) -> Loss:
        """See the class."""
        log_product = ratio.detach().log().sum(-1, keepdim=True)  # [b, t] -> [b, 1]
        log_w = log_product.clamp(math.log(1e-8), 20.0)
        k = torch.where(advantages >= 0, self.k_pos, ratio.new_tensor(self.k_neg))  # [b, t]
        decay = torch.where(advantages >= 0, self.lambda_pos, ratio.new_tensor(self.lambda_neg))
        phi = (k * log_w + decay * (1 - log_w.exp())).exp()
        stats = {**_unclipped(ratio), "vespo/phi_mean": phi}
        return Loss(value=-phi * advantages * new.logprobs, stats=stats)


@dataclass(frozen=True, kw_only=True)
class DPPO(Objective):
    """-r A without a clip, but for decisions at which the policies are far apart and would come further apart.

    A decision is dropped if the divergence of the old and the new policy at it is at least `threshold`, and A (r - 1)
    is above 0. From DPPO (2026, arXiv:2602.04879) for tokens, and Flow-DPPO (2026, arXiv:2606.11025) for flows; see
    `grpokit.divergence.policy_divergence`.

    Attributes:
        threshold: in nats per dimension for Gaussian decisions, and a difference of probabilities for tokens; None:
            1e-5 and 0.15.
    """

    threshold: NotNegative | None = None

    @property
    def needs_old_moments(self) -> bool:
        """Always: Gaussian decisions are compared by them, and tokens have none."""
        return True

    def policy_loss(self, ratio: Tensor, advantages: Tensor, mask: Tensor, new: Decisions, old: Decisions) -> Loss:
        """See the class."""
        usual = 0.15 if old.mean is None else 1e-5
        with torch.no_grad():
            far = policy_divergence(new, old, mask) >= (usual if self.threshold is None else self.threshold)
            dropped = mask & far & (advantages * log_ratio(new, old, mask, self.ratio) > 0)
        stats = {"clip_low": dropped & (advantages < 0), "clip_high": dropped & (advantages > 0)}
        return Loss(value=-ratio * torch.where(dropped, 0.0, advantages), stats=stats)


@dataclass(frozen=True, kw_only=True)
class NFT(Objective):
    """A good sample attracts the prediction of a finished sample, a bad one repels it; no ratio, no log-prob.

    With e = m - x0 the error of the new policy's prediction, e' that of the old one's, e+ = b e + (1 - b) e',
    e- = (1 + b) e' - b e and q = clip(A / bound, -1, 1) / 2 + 1/2, the loss is bound / b times
    q mean(e+^2) / mean|e+| + (1 - q) mean(e-^2) / mean|e-|, the divisors detached and at least 1e-5. From DiffusionNFT
    (Zheng et al., 2025, arXiv:2509.16117). At A = 0 the two terms would hold the new policy to the old one, without
    a gradient where they are the same; here such a decision is left out.

    Attributes:
        beta: b, how far from the old policy's prediction attraction and repulsion are measured.
        advantage_bound: the advantage from which on a sample is all good, with q = 1.
    """

    beta: Positive = 1.0
    advantage_bound: Positive = 5.0
    ratio: RatioKind = field(default="token", init=False)
    off_policy_mask_threshold: Positive | None = field(default=None, init=False)

    @property
    def needs_old_moments(self) -> bool:
        """Always: the old policy's predictions are its means."""
        return True

    def policy_loss(self, ratio: Tensor, advantages: Tensor, mask: Tensor, new: Decisions, old: Decisions) -> Loss:
        """See the class.

        Raises:
            UsageError: decisions without a target.
        """
        check_copies(new, "objective 'nft' compares predictions of finished samples")
        assert new.mean is not None
        assert new.target is not None
        assert old.mean is not None
        decided = mask.reshape(*mask.shape, *[1] * (new.mean.ndim - 2))
        error = torch.where(decided, new.mean - new.target, 0.0).flatten(2)
        before = torch.where(decided, old.mean.detach() - new.target, 0.0).flatten(2)
        attracted = normalised_error(self.beta * error + (1 - self.beta) * before)
        repelled = normalised_error((1 + self.beta) * before - self.beta * error)
        share = (advantages.to(error) / self.advantage_bound).clamp(-1, 1)
        good = share / 2 + 0.5
        value = (good * attracted + (1 - good) * repelled) * self.advantage_bound / self.beta
        value = torch.where(mask & (advantages != 0), value, 0.0)
        return Loss(value=value, stats=_unclipped(ratio))


def check_copies(new: Decisions, need: str) -> None:
    """Refuse decisions that are not noised copies.

    Args:
        new: the decisions.
        need: what an objective does with copies, such as "objective 'nft' compares predictions of finished samples".

    Raises:
        UsageError: tokens, or denoising steps.
    """
    if new.target is None:
        raise UsageError(
            f"{need}, but this policy's decisions are tokens or denoising steps. Give a flow policy matching, such as "
            "policy.matching={times: 4}, or take grpo."
        )


def normalised_error(error: Tensor) -> Tensor:
    """The mean square over the mean distance, which is at least 1e-5 and has no gradient: [b, t, D] -> [b, t]."""
    distance = error.detach().abs().mean(-1).clamp(min=1e-5)
    return error.square().mean(-1) / distance


def _unclipped(ratio: Tensor) -> dict[str, Tensor]:
    """The statistics of a loss without a clip."""
    never = torch.zeros_like(ratio, dtype=torch.bool)
    return {"clip_low": never, "clip_high": never}
