"""How far two policies are apart in the decisions of one of them: importance ratio, KL, correction of a sampler.

Masked decisions are replaced before any arithmetic, so a NaN under the mask stays there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpokit.errors import UsageError
from grpokit.settings import Correction, KLKind, RatioKind
from grpokit.types import Decisions


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
        std = _masked(new.std, mask, 1.0)
        drift = _per_dimension(_difference(new.mean, old.mean, mask).square() / (2 * std.square()))
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
    not a KL but a penalty that treats all steps of a flow alike: (v - v_ref)^2, averaged over the dimensions, where
    v - v_ref = (m - m_ref) / v_coef.

    With D dimensions, d is a mean over them, and its square is about 2 / D of the KL per dimension. So k2 and k3 are D
    times too weak there, and a trainer refuses them (see `Objective.check_action_dims`).

    Raises:
        UsageError: "gaussian" without mean and std, "velocity" without mean and v_coef, another one of decisions with
            a target, which have no log-probs, or an unknown kind.
    """
    if kind == "velocity":
        if new.mean is None or new.v_coef is None or reference.mean is None:
            raise UsageError("kl 'velocity' needs the steps of a flow (see grpokit.flow.score): use gaussian or k3.")
        velocity = _difference(new.mean, reference.mean, mask) / _masked(new.v_coef, mask, 1.0)
        return torch.where(mask, _per_dimension(velocity.square()), 0.0)
    if kind == "gaussian":
        return _gaussian_kl(new, reference, mask)
    if new.target is not None:
        raise UsageError(f"kl '{kind}' needs log-probs, and noised copies of samples have none: set kl: velocity.")
    d = bound_log_ratio(torch.where(mask, reference.logprobs - new.logprobs, 0.0))
    if kind == "k1":
        return -d
    if kind == "k2":
        return d.square() / 2
    if kind == "k3":
        return d.exp() - d - 1
    raise UsageError(f"kl must be 'k1', 'k2', 'k3', 'gaussian' or 'velocity', got {kind!r}.")


def _gaussian_kl(new: Decisions, reference: Decisions, mask: Tensor) -> Tensor:
    if new.mean is None or new.std is None or reference.mean is None or reference.std is None:
        raise UsageError(
            "kl 'gaussian' needs decisions with a mean and a std, but this policy gives none. Use k3, or velocity "
            "for a flow with matching."
        )
    std = _masked(new.std, mask, 1.0)
    ref_std = _masked(reference.std, mask, 1.0)
    # (s^2 + d^2) / (2 s_ref^2) - 1/2, written so that nothing cancels where both are nearly the same
    excess = (std - ref_std) * (std + ref_std) + _difference(new.mean, reference.mean, mask).square()
    exact = (ref_std / std).log() + excess / (2 * ref_std.square())
    return torch.where(mask, _per_dimension(exact), 0.0)


def policy_divergence(new: Decisions, old: Decisions, mask: Tensor) -> Tensor:
    """How far the new policy is from the old one at each decision: [b, t], zero under the mask.

    Of a Gaussian decision the exact KL in nats per dimension, Flow-DPPO (2026, arXiv:2606.11025). Of a token the
    difference |p - p_old| of the drawn one's probabilities, DPPO (2026, arXiv:2602.04879): a lower bound of the total
    variation of the two distributions.
    """
    if new.target is not None:
        raise UsageError("dppo compares densities, and noised copies of samples have none: take grpo or nft.")
    if old.mean is not None:
        return kl_divergence(new, old, mask, "gaussian")
    logprobs = torch.where(mask, new.logprobs, 0.0)
    old_logprobs = torch.where(mask, old.logprobs, 0.0)
    return (logprobs.exp() - old_logprobs.exp()).abs()


def correction_weights(correction: Correction, old: Tensor, sampled: Tensor, mask: Tensor) -> Tensor:
    """The factor of each decision's surrogate: [b, t], without gradient, 1 under the mask.

    An engine with its own kernels, or weights of some updates ago, draw from another distribution q than the policy pi
    of the training forward pass. The weight pi / q makes the expected gradient the policy's own. "truncate" is
    truncated importance sampling (Ionides, "Truncated importance sampling", 2008), "mask" is IcePop (Ling Team, 2025,
    arXiv:2510.18855).

    Args:
        correction: how, and within which bounds.
        old: [b, t] log-probs of the training forward pass before the update.
        sampled: [b, t] log-probs that the sampler stated.
        mask: [b, t] bool; for a sequence's weight all decisions of its rows.
    """
    difference = torch.where(mask, old - sampled, 0.0).detach()
    if correction.per == "sequence":
        difference = difference.sum(-1, keepdim=True).expand_as(difference)  # [b, t] -> [b, 1] -> [b, t]
    weights = bound_log_ratio(difference).exp()
    if correction.how == "truncate":
        weights = weights.clamp(correction.low, correction.high)
    else:
        inside = (weights >= correction.low) & (weights <= correction.high)
        weights = torch.where(inside, weights, 0.0)
    return torch.where(mask, weights, 1.0)


def bound_log_ratio(log_ratio: Tensor) -> Tensor:
    """Keep exp() and its gradient finite; e^20 is far beyond any clip range."""
    return log_ratio.clamp(-20.0, 20.0)


def _per_dimension(x: Tensor) -> Tensor:
    """The mean over a decision's dimensions: [b, t, ...] -> [b, t]."""
    return x.flatten(2).mean(-1) if x.ndim > 2 else x


def _difference(mean: Tensor, other: Tensor, mask: Tensor) -> Tensor:
    """How far means are apart: [b, t, ...], zero under the mask."""
    return _masked(mean, mask, 0.0) - _masked(other, mask, 0.0)


def _masked(x: Tensor, mask: Tensor, value: float) -> Tensor:
    """x [b, t, ...] in fp32 or better, with `value` under the mask [b, t]."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    dimensions = [1] * (x.ndim - 2)
    return torch.where(mask.reshape(*mask.shape, *dimensions), x, value)
