"""Advantages: pure functions from a reward matrix to one number per sample.

All have the signature `(rewards [B, R], weights [R], groups [B]) -> [B]`. `groups` says which rows belong together,
so rows may have any order. The arithmetic is fp64. NaN means that a reward could not score a row; `reward_totals` says
what replaces it. A row that no reward scored gets exactly 0 and is left out of all statistics. Every row of a
group with equal totals gets 0 too.

One with the keyword `decision_rewards` reads what an environment gave for each decision, and returns [B, T].
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from grpokit.errors import UsageError
from grpokit.group_statistics import Std, batch_std
from grpokit.reward_totals import FilledRewards, fill

AdvantageFn: TypeAlias = Callable[..., Tensor]
"""Turns rewards [B, R], weights [R] and groups [B] into advantages [B] or [B, T]."""
Scale: TypeAlias = Literal["group", "batch", "none"]
"""What divides a row's distance from the mean of its group: a standard deviation of the group or of the batch."""


def group(
    rewards: Tensor,
    weights: Tensor,
    groups: Tensor,
    *,
    scale: Scale = "group",
    std: Std = "unbiased",
    eps: float = 1e-4,
    clip: float | None = None,
) -> Tensor:
    """Z-score of the weighted sum of rewards inside each group: A = (r - mean) / (std + eps).

    From DeepSeekMath (Shao et al., 2024, arXiv:2402.03300, section 4.1.2).

    Args:
        rewards: [B, R]; NaN where a reward could not score a row.
        weights: [R].
        groups: [B] int64 group ids, rows in any order.
        scale: divide by the group's std, by the std over the whole batch, or by nothing.
        std: "unbiased" (n - 1) or "biased" (n).
        eps: added to the std.
        clip: the bound of |A|; None for no bound.

    Returns:
        [B] in the dtype of `rewards` (fp32 for integers).

    Raises:
        UsageError: a shape is wrong, or a group has a single row.

    >>> r, g = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.zeros(4, dtype=torch.int64)
    >>> group(r, torch.ones(1), g)
    tensor([-1.1618, -0.3873,  0.3873,  1.1618])
    """
    b = fill(rewards, weights, groups)
    advantages = b.groups.centre(b.totals, b.scored)
    if scale != "none":
        spread = batch_std if _is_batch(scale) else b.groups.std
        advantages = advantages / (spread(b.totals, b.scored, std) + eps)
    return _finished(b, advantages, b.totals, clip, rewards)


def centred(rewards: Tensor, weights: Tensor, groups: Tensor, *, clip: float | None = None) -> Tensor:
    """Reward minus the group's mean, without a division: Dr. GRPO (Liu et al., 2025, arXiv:2503.20783).

    Other arguments, the return value and errors are those of `group`.

    Args:
        clip: the bound of |A|; None for no bound.
    """
    return group(rewards, weights, groups, scale="none", clip=clip)


def rloo(rewards: Tensor, weights: Tensor, groups: Tensor, *, clip: float | None = None) -> Tensor:
    """Reward minus the mean of the *other* samples of the group (leave-one-out).

    From RLOO (Ahmadian et al., 2024, arXiv:2402.14740). Equal to (r - mean) * n / (n - 1) with n scored rows.
    Other arguments, the return value and errors are those of `group`.

    Args:
        clip: the bound of |A|; None for no bound.
    """
    b = fill(rewards, weights, groups)
    n = b.groups.count(b.scored)
    difference = b.groups.centre(b.totals, b.scored)
    advantages = difference * n / (n - 1).clamp(min=1)
    return _finished(b, advantages, b.totals, clip, rewards)


def gdpo(
    rewards: Tensor,
    weights: Tensor,
    groups: Tensor,
    *,
    std: Std = "unbiased",
    eps: float = 1e-4,
    clip: float | None = None,
) -> Tensor:
    """Z-score per reward inside the group, weighted sum, then z-score over the batch.

    From GDPO (Liu et al., 2026, arXiv:2601.05242). In a sum of raw rewards the one with the largest spread dominates;
    here a reward's influence is its weight. A reward's z-scores are over the rows that it scored. The others get 0, so
    the weighted sums add up to 0 in every group, and their batch mean, which the paper subtracts, is only rounding.
    Other arguments, the return value and errors are those of `group`.

    Args:
        std: "unbiased" (n - 1) or "biased" (n).
        eps: added to each std.
        clip: the bound of |A|; None for no bound.
    """
    b = fill(rewards, weights, groups)
    total = torch.zeros_like(b.totals)
    for k, weight in enumerate(b.weights):
        column = b.matrix[:, k]
        rows = b.has_score[:, k]
        spread = b.groups.std(column, rows, std)
        z = b.groups.centre(column, rows) / (spread + eps)
        flat = b.groups.is_constant(column, rows)
        total = total + weight * torch.where(flat, 0.0, z)
    advantages = total
    if bool(b.scored.any()):
        advantages = total - total[b.scored].mean()
    advantages = advantages / (batch_std(total, b.scored, std) + eps)
    return _finished(b, advantages, total, clip, rewards)


def returns_to_go(
    rewards: Tensor,
    weights: Tensor,
    groups: Tensor,
    *,
    decision_rewards: Tensor,
    scale: Scale = "group",
    eps: float = 1e-4,
    clip: float | None = None,
) -> Tensor:
    """What a row earns from each decision on, minus the group's mean at the same decision.

    What came before a decision cannot be due to it, so leaving it out takes noise away (the reward-to-go of policy
    gradients; the mean over other samples is the baseline). A row that has ended counts with what it gets no sooner
    than at its end. At decision 0 this is `group`'s difference from the mean.

    Args:
        rewards: [B, R]; one of the columns is the sum of `decision_rewards`, such as that of `episode-return`.
        weights: [R].
        groups: [B] int64 group ids.
        decision_rewards: [B, T]; NaN where a row decided nothing.
        scale: divide by the root mean square of the group's differences, by that of the whole batch, or by nothing.
        eps: added to the divisor.
        clip: the bound of |A|; None for no bound.

    Returns:
        [B, T], 0 where nothing was decided.

    Raises:
        UsageError: as for `group`, or no column is the sum of the decisions' rewards.

    >>> one, g = torch.ones(1), torch.zeros(2, dtype=torch.int64)
    >>> earned = torch.tensor([[1.0, 1.0], [1.0, torch.nan]])
    >>> returns_to_go(torch.tensor([[2.0], [1.0]]), one, g, decision_rewards=earned, scale="none")
    tensor([[ 0.5000,  0.5000],
            [-0.5000,  0.0000]])
    """
    b = fill(rewards, weights, groups)
    scored = b.scored[:, None].expand_as(decision_rewards)  # [B] -> [B, T]
    decided = ~decision_rewards.isnan() & scored
    earned = decision_rewards.double().nan_to_num()
    before = _return_weight(b, earned.sum(1)) * (earned.cumsum(1) - earned)
    to_go = b.totals[:, None] - before
    difference = torch.where(decided, b.groups.centre(to_go, scored), 0.0)
    if scale != "none":
        squares = difference.square().sum(1)  # [B, T] -> [B]
        count = decided.sum(1).double()
        if _is_batch(scale):
            mean_square = squares.sum() / count.sum().clamp(min=1e-9)
        else:
            mean_count = b.groups.mean(count, b.scored)
            mean_square = b.groups.mean(squares, b.scored) / mean_count.clamp(min=1e-9)
        difference = difference / (mean_square.sqrt() + eps).reshape(-1, 1)
    return _clipped(difference, clip, rewards)


def _return_weight(b: FilledRewards, returns: Tensor) -> Tensor:
    """The weight of the first reward that is the sum [B] of its row's decisions."""
    for k, rows in enumerate(b.has_score.T):
        if torch.allclose(b.matrix[rows, k], returns[rows], rtol=1e-5):
            return b.weights[k]
    raise UsageError(
        "returns_to_go needs a trained reward that is the sum of what the environment gave for each decision, such as "
        "episode-return. None of the rewards is."
    )


def compute(
    function: AdvantageFn, rewards: Tensor, weights: Tensor, groups: Tensor, decision_rewards: Iterable[Tensor] = ()
) -> Tensor:
    """Call an advantage function; `decision_rewards` are for one that has such a parameter: B tensors [t].

    Raises:
        UsageError: the function needs them, and the policy does not tell them.
    """
    if "decision_rewards" not in inspect.signature(function).parameters:
        return function(rewards, weights, groups)
    rows = list(decision_rewards)
    if not rows:
        raise UsageError(
            "The advantage reads what an environment gave for each decision, and this policy tells no "
            "Rollout.decision_rewards. Use another advantage, such as group."
        )
    table = pad_sequence(rows, batch_first=True, padding_value=torch.nan)
    return function(rewards, weights, groups, decision_rewards=table)


def _is_batch(scale: Scale) -> bool:
    if scale not in ("group", "batch"):
        raise UsageError(f"Advantage scale must be 'group', 'batch' or 'none', got {scale!r}.")
    return scale == "batch"


def _finished(b: FilledRewards, advantages: Tensor, total: Tensor, clip: float | None, rewards: Tensor) -> Tensor:
    """Exact zeros for rows that are not scored and for groups of equal totals, the bound, and the rewards' dtype."""
    zero = ~b.scored | b.groups.is_constant(total, b.scored)
    return _clipped(torch.where(zero, 0.0, advantages), clip, rewards)


def _clipped(advantages: Tensor, clip: float | None, rewards: Tensor) -> Tensor:
    """The bound, and the rewards' dtype."""
    if clip is not None:
        if not clip > 0:
            raise UsageError(f"Advantage clip must be above 0, or None for no clip, got {clip}.")
        advantages = advantages.clamp(-clip, clip)
    return advantages.to(rewards.dtype if rewards.is_floating_point() else torch.get_default_dtype())
