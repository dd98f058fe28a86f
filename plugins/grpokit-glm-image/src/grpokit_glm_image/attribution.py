"""Which of two random causes moves a reward: what a sample draws for itself, or what its group shares.

For each prompt a small grid is drawn: every row seed with every group seed. In a model of two halves, where the first
draws from the row's seed and the second from the group's, a two-way analysis of variance then says which half moves the
reward. Its components are those of the random-effects model without replication (Scheffé, "The Analysis of Variance",
1959, section 7.4): their joint effect cannot be told from chance, and the two have one share together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from grpokit import Policy, Prompt, Rollout, Seeds, UsageError, evaluate
from grpokit.data import as_prompts
from grpokit.rewards.terms import Rewards
from grpokit.sampling import derive_seeds


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of a reward's variance inside prompts; they sum to 1, or are all 0 without any variance.

    Attributes:
        row: what samples draw for themselves.
        group: what the samples of a group share.
        both: the joint effect of the two, and chance.
        variance: what is split, as the mean over prompts.
        prompts: how many were scored in full.
    """

    row: float
    group: float
    both: float
    variance: float
    prompts: int


def two_way(scores: Tensor) -> Shares:
    """The analysis of variance of scores [P, A, D]: A row seeds by D group seeds for each prompt.

    Components are estimated without bias from mean squares, and negative ones count as 0. A prompt with a score that
    is NaN is left out.

    >>> moved_by_rows = torch.tensor([[[0.0, 0.0], [1.0, 1.0]]])
    >>> two_way(moved_by_rows).row
    1.0
    """
    scores = scores.double()
    scores = scores[~scores.isnan().flatten(1).any(1)]
    prompts, rows, groups = scores.shape
    none = Shares(row=0.0, group=0.0, both=0.0, variance=0.0, prompts=prompts)
    if not prompts:
        return none
    by_row = scores.mean(2, keepdim=True)
    by_group = scores.mean(1, keepdim=True)
    mean = scores.mean((1, 2), keepdim=True)
    row_squares = (by_row - mean).square().sum()
    group_squares = (by_group - mean).square().sum()
    squares = (scores - by_row - by_group + mean).square().sum()
    row_mean = float(groups * row_squares / (prompts * (rows - 1)))
    group_mean = float(rows * group_squares / (prompts * (groups - 1)))
    both = float(squares / (prompts * (rows - 1) * (groups - 1)))
    row = max(0.0, (row_mean - both) / groups)
    group = max(0.0, (group_mean - both) / rows)
    total = row + group + both
    if total <= 1e-12 * max(1.0, float(scores.square().mean())):  # rounding
        return none
    return Shares(row=row / total, group=group / total, both=both / total, variance=total, prompts=prompts)


def attribute(
    policy: Policy,
    rewards: Rewards,
    prompts: Iterable[str | Prompt],
    *,
    seed: int = 42,
    row_seeds: int = 4,
    group_seeds: int = 4,
    batch_size: int = 64,
    mixed_precision: str = "no",
) -> Mapping[str, Shares]:
    """Draw a grid of samples per prompt and share out each reward's variance; "reward" is their weighted total.

    Args:
        policy: used with its own settings for evaluation. What a group shares must follow from `seeds.group` alone,
            which the conformance kit checks.
        rewards: as for `Trainer`.
        prompts: P texts or prompts.
        seed: all randomness follows from it.
        row_seeds: A.
        group_seeds: D; P * A * D samples are drawn.
        batch_size: the most samples at a time; halved if memory runs out.
        mixed_precision: "no", "bf16" or "fp16", as in training.
    """
    prompts = as_prompts(prompts)
    if min(row_seeds, group_seeds) < 2:
        raise UsageError(f"Attribution needs at least 2 seeds of each kind, got {row_seeds} by {group_seeds}.")
    own, *others = (
        derive_seeds(seed, stream="evaluate", step=step, prompts=len(prompts), group_size=row_seeds).group.tolist()
        for step in range(group_seeds + 1)
    )
    columns: dict[str, list[Tensor]] = {}
    for other in others:
        shared = cast(Policy, _OtherGroups(policy, dict(zip(own, other, strict=True))))
        evaluation = evaluate(
            shared,
            rewards,
            prompts,
            seed=seed,
            samples_per_prompt=row_seeds,
            batch_size=batch_size,
            mixed_precision=mixed_precision,
        )
        for name, column in evaluation.columns().items():
            columns.setdefault(name, []).append(column.reshape(len(prompts), row_seeds))
    return {name: two_way(torch.stack(grids, dim=2)) for name, grids in columns.items()}


class _OtherGroups:
    """A policy whose groups share the draws of other seeds; its samples' own draws stay.

    Args:
        policy: what draws.
        others: a group's seed -> the one to draw with.
    """

    def __init__(self, policy: Policy, others: Mapping[int, int]) -> None:
        self._policy = policy
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        group = [self._others[seed] for seed in seeds.group.tolist()]
        seeds = replace(seeds, group=torch.tensor(group, device=seeds.group.device))
        return self._policy.rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
