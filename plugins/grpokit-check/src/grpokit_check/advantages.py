"""The checks that every advantage function passes: what the trainer, its metrics and its guards rely on.

The batches are small, with groups of unequal sizes. For a function that reads what an environment
gave for each decision, a row earns its first reward with its first decision.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpokit.advantages import AdvantageFn, compute
from grpokit.group_statistics import groups_without_advantage
from grpokit_check.check import Check, checks_of, expect, expect_unchanged, expect_untouched, random_states

_ROUNDING = 1e-9


def advantage_checks(function: AdvantageFn, *, module: str | None = None) -> Iterator[Check]:
    """Yield the checks of an advantage function.

    Args:
        function: `(rewards [B, R], weights [R], groups [B]) -> [B]` or [B, T], with its parameters bound.
        module: the plugin's module behind the entry point, which must import nothing heavy.
    """
    yield from checks_of(_CHECKS, function, module)


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """What an advantage function reads: three groups of 3, 4 and 2 rows, with two rewards."""

    rewards: Tensor  # [B, R]
    weights: Tensor  # [R]
    groups: Tensor  # [B]
    lengths: Tensor  # [B], decisions

    def select(self, rows: Tensor) -> _Batch:
        """Some rows, or all in another order."""
        rewards, groups, lengths = (x[rows] for x in (self.rewards, self.groups, self.lengths))
        return _Batch(rewards=rewards, weights=self.weights, groups=groups, lengths=lengths)

    def advantages(self, function: AdvantageFn) -> Tensor:
        """What the function gives, [B] or [B, T]."""
        earned = [torch.zeros(count, dtype=torch.float64) for count in self.lengths.tolist()]
        for row, value in zip(earned, self.rewards[:, 0].nan_to_num(), strict=True):
            row[0] = value
        return compute(function, self.rewards, self.weights, self.groups, earned)

    def per_row(self, function: AdvantageFn) -> Tensor:
        """The advantage of each row's first decision, [B]."""
        advantages = self.advantages(function)
        return advantages if advantages.ndim == 1 else advantages[:, 0]

    def rows(self, group: int) -> Tensor:
        """The numbers of a group's rows, the worst total first."""
        numbers = (self.groups == group).nonzero()[:, 0]
        totals = (self.rewards[numbers] * self.weights).sum(-1)
        return numbers[totals.argsort()]


def _batch() -> _Batch:
    first = torch.tensor([0.9, 0.7, 0.6, 0.2, 0.1, 0.8, 0.3, 0.5, 0.4], dtype=torch.float64)
    return _Batch(
        rewards=torch.stack([first, 3 * first.square()], dim=1),
        weights=torch.tensor([1.0, 0.25], dtype=torch.float64),
        groups=torch.tensor([3, 3, 3, 7, 7, 7, 7, 11, 11]),
        lengths=torch.tensor([2, 2, 3, 3, 3, 1, 3, 1, 2]),
    )


def shape(function: AdvantageFn) -> None:
    """There is one finite number per row, or one per decision, in the dtype of the rewards."""
    batch = _batch()
    for dtype in (torch.float64, torch.float32):
        advantages = replace(batch, rewards=batch.rewards.to(dtype)).advantages(function)
        expect(isinstance(advantages, Tensor), "a tensor", f"{advantages!r:.80}", "a list of numbers")
        rows, decisions = len(batch.groups), int(batch.lengths.max())
        expect(tuple(advantages.shape) in ((rows,), (rows, decisions)), f"the shape {(rows,)}, or {(rows, decisions)} "
               "for decisions", f"{tuple(advantages.shape)}", "a column per reward, or a number per group")  # fmt: skip
        expect(advantages.isfinite().all(), "finite advantages", f"{advantages}", "a division by a std of 0")
        expect(advantages.dtype == dtype, f"advantages of {dtype}, as the rewards", f"{advantages.dtype}",
               "arithmetic in another precision that is not converted back")  # fmt: skip


def better(function: AdvantageFn) -> None:
    """A better sample of a group gets more than a worse one."""
    batch = _batch()
    _expect_order(batch, function, "of a better sample")


def weights(function: AdvantageFn) -> None:
    """Each reward counts with its weight, and one with a negative weight counts against a sample."""
    batch = _batch()
    contrary = batch.rewards * torch.tensor([1.0, -1.0])  # what is better by one reward is worse by the other
    for pair in ([1.0, 0.01], [0.01, 1.0], [-1.0, 0.01]):
        case = replace(batch, rewards=contrary, weights=torch.tensor(pair, dtype=torch.float64))
        _expect_order(case, function, f"of a sample that is better by rewards with the weights {pair}")


def _expect_order(batch: _Batch, function: AdvantageFn, whose: str) -> None:
    """The advantages of each group rise with the totals, as far as they differ, and the best row's is above 0."""
    advantages = batch.per_row(function)
    for group in batch.groups.unique().tolist():
        mine = advantages[batch.rows(group)]
        rises = bool((mine.diff() >= -_ROUNDING).all()) and bool(mine[-1] > max(0.0, float(mine[0])))
        expect(rises, f"an advantage {whose} above that of a worse one, and above 0 for the best",
               f"{_numbers(mine)} from the worst row to the best of a group",
               "a wrong sign, weights that are not read, or rows that are mixed up")  # fmt: skip


def precision(function: AdvantageFn) -> None:
    """A small difference of large rewards is not rounded away."""
    batch = _batch()
    _expect_order(replace(batch, rewards=batch.rewards + 1e8), function, "of a sample better by 1e-8 of the reward")


def equal_rewards(function: AdvantageFn) -> None:
    """All rows of a group with equal rewards get 0, whatever other groups have."""
    batch = _batch()
    rewards = batch.rewards.clone()
    same = batch.groups == 7
    rewards[same] = torch.tensor([0.1, 0.7], dtype=torch.float64)
    for part in (batch.rewards[same], None):  # among groups with a spread, then without any
        advantages = replace(batch, rewards=rewards).advantages(function)
        place = batch.groups.unique().tolist().index(7)
        silent = groups_without_advantage(advantages, batch.groups)[place]
        expect(silent, "0 for all rows of a group with equal rewards",
               f"{_numbers(advantages[same])}",
               "a mean over the whole batch, not the group's; or rounding divided by a tiny eps")  # fmt: skip
        rewards = rewards if part is None else torch.full_like(rewards, 0.3)


def missing_scores(function: AdvantageFn) -> None:
    """A row without a score gets 0 and counts in no statistic; a missing score (NaN) spreads to no other row."""
    batch = _batch()
    rewards = batch.rewards.clone()
    rewards[0, 1] = torch.nan  # one of two scores
    rewards[batch.groups == 11] = torch.nan  # a group without any
    some = replace(batch, rewards=rewards)
    for case in (some, replace(batch, rewards=torch.full_like(rewards, torch.nan))):
        advantages = case.advantages(function)
        expect(advantages.isfinite().all(), "finite advantages where scores are missing", f"{_numbers(advantages)}",
               "a mean or a std over NaN; use grpokit.reward_totals.fill")  # fmt: skip
        bare = case.rewards.isnan().all(1)
        expect(not advantages[bare].any(), "exactly 0 for rows that no reward scored", f"{_numbers(advantages[bare])}",
               "a missing score that counts as a score of 0")  # fmt: skip
    _expect_left_out(batch, function)


def _expect_left_out(batch: _Batch, function: AdvantageFn) -> None:
    """A row that no reward scored takes no part in the statistics of its group."""
    rewards = batch.rewards.clone()
    rewards[5] = torch.nan
    others = rewards[:, 0].isfinite()
    whole = replace(batch, rewards=rewards)
    having = whole.per_row(function)[others]
    lacking = whole.select(others).per_row(function)
    expect(torch.allclose(having, lacking, rtol=0.0, atol=_ROUNDING), "the same advantages with and without a row that "
           "no reward scored", f"{_numbers(having)} and {_numbers(lacking)}",
           "a row without a score that counts in the group's mean or size")  # fmt: skip


def order(function: AdvantageFn) -> None:
    """The order of rows and the numbers of groups change nothing."""
    batch = _batch()
    expected = batch.per_row(function)
    names = {7: 2, 3: 40, 11: 5}
    renamed = replace(batch, groups=torch.tensor([names[number] for number in batch.groups.tolist()]))
    found = renamed.per_row(function)
    expect(torch.allclose(found, expected, rtol=0.0, atol=_ROUNDING), "the same advantages under other group ids",
           f"{_numbers(found)} for {_numbers(expected)}", "group ids that are used as indices")  # fmt: skip
    rows = torch.tensor([5, 0, 7, 3, 1, 8, 6, 2, 4])
    found = batch.select(rows).per_row(function)
    expect(torch.allclose(found, expected[rows], rtol=0.0, atol=_ROUNDING), "advantages that follow their rows into "
           "another order", f"{_numbers(found)} for {_numbers(expected[rows])}",
           "groups read from the order of the rows, such as rewards.view(-1, G); use the ids in `groups`")  # fmt: skip


def groups_independent(function: AdvantageFn) -> None:
    """Rewards of other groups change a group's advantages by a common factor at most."""
    batch = _batch()
    expected = batch.per_row(function)
    changes: Sequence[Callable[[Tensor], Tensor]] = (lambda x: 5.0 - 3.0 * x**3, lambda x: (x > 0.25).to(x))
    for group, change in itertools.product(batch.groups.unique(), changes):
        mine = batch.groups == group
        others_changed = torch.where(mine[:, None], batch.rewards, change(batch.rewards))
        before = expected[mine]
        after = replace(batch, rewards=others_changed).per_row(function)[mine]
        same = torch.allclose(before / before.abs().max(), after / after.abs().max(), rtol=0.0, atol=1e-6)
        expect(same, "advantages of a group that other groups scale at most", f"{_numbers(before)} and, with other "
               f"rewards in other groups, {_numbers(after)}",
               "a mean or a rank over the whole batch; subtract the group's own mean first")  # fmt: skip


def pure(function: AdvantageFn) -> None:
    """The same rewards give the same advantages, nothing is changed in place, and no global random state is touched."""
    batch = _batch()
    states = random_states()
    with expect_unchanged(
        {"rewards": batch.rewards, "weights": batch.weights, "groups": batch.groups}, "rewards -= mean"
    ):
        first = batch.advantages(function)
        second = batch.advantages(function)
    expect_untouched(states, "an advantage function")
    expect(torch.equal(first, second), "the same advantages for the same rewards",
           f"{_numbers(first)}, then {_numbers(second)}", "noise, or a state that each call changes")  # fmt: skip


def _numbers(x: Tensor) -> str:
    return str([round(value, 4) for value in x.flatten().tolist()])


_CHECKS: Sequence[Callable[[AdvantageFn], None]] = (
    shape,
    better,
    weights,
    precision,
    equal_rewards,
    missing_scores,
    order,
    groups_independent,
    pure,
)
