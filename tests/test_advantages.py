"""Advantages against the golden table, hand-computed cases, and properties."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpokit import UsageError
from grpokit.advantages import centred, compute, gdpo, group, returns_to_go, rloo
from grpokit.group_statistics import groups_without_advantage

NAN = math.nan
GOLDEN = json.loads((Path(__file__).parent / "golden/advantages.json").read_text())


def table(rows: list[list[float | None]]) -> torch.Tensor:
    return torch.tensor([[NAN if v is None else float(v) for v in row] for row in rows])


def one(values: list[float], groups: list[int] | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A single reward of weight 1."""
    return torch.tensor(values, dtype=torch.float64)[:, None], torch.ones(1), torch.tensor(groups or [0] * len(values))


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: c["id"])
def test_golden(case: dict) -> None:
    arguments = table(case["rewards"]), torch.tensor(case["weights"]).float(), torch.tensor(case["groups"])
    scale = case["scale"]
    got = gdpo(*arguments) if scale == "gdpo" else group(*arguments, scale=scale)
    assert got.tolist() == pytest.approx(case["expect"], abs=1e-5)


def test_missing_reward_takes_the_groups_mean() -> None:
    # by hand: reward 1 has mean 2, reward 2 has mean 20, so the sums are 21, 12, 23, 32 with mean 22 and
    # std sqrt((1 + 100 + 1 + 100) / 3) = 8.2057
    got = group(table([[1, None], [2, 10], [3, 20], [None, 30]]), torch.ones(2), torch.zeros(4, dtype=torch.int64))
    std = math.sqrt(202 / 3) + 1e-4
    assert got.tolist() == pytest.approx([-1 / std, -10 / std, 1 / std, 10 / std], abs=1e-6)


def test_biased_std() -> None:
    # 1, 2, 3, 4: biased variance 1.25
    got = group(*one([1, 2, 3, 4]), std="biased", eps=0.0)
    assert got.tolist() == pytest.approx(
        [-1.5 / math.sqrt(1.25), -0.5 / math.sqrt(1.25), 0.5 / math.sqrt(1.25), 1.5 / math.sqrt(1.25)]
    )
    assert group(*one([1, 2, 3, 4]), std="biased", eps=0.0, scale="batch").tolist() == pytest.approx(got.tolist())


def test_centred() -> None:
    assert centred(*one([1, 2, 6, 5, 7], [0, 0, 0, 9, 9])).tolist() == [-2, -1, 3, -1, 1]


def test_rloo() -> None:
    # each reward minus the mean of the others: 1 - 4, 2 - 3.5, 6 - 1.5
    assert rloo(*one([1, 2, 6])).tolist() == pytest.approx([-3, -1.5, 4.5])


def test_rloo_leaves_unscored_rows_out() -> None:
    assert rloo(*one([1, NAN, 3])).tolist() == pytest.approx([-2, 0, 2])


@pytest.mark.parametrize("function", [group, centred, rloo])
def test_weights_multiply_rewards(function) -> None:
    rewards, weights = torch.tensor([[1.0, 9], [4, 2], [6, 5], [0, 7]]).double(), torch.tensor([2.0, -0.5]).double()
    groups = torch.tensor([0, 1, 0, 1])
    total = rewards @ weights
    assert function(rewards, weights, groups).tolist() == pytest.approx(
        function(total[:, None], torch.ones(1), groups).tolist()
    )


def test_gdpo_weighs_z_scores_and_divides_by_the_spread_of_the_batch() -> None:
    # by hand: z-scores are -+c. The first group's sums are -+(3 - 1) c, the second's, where the second reward is the
    # same for both rows, -+3 c; dividing inside each group would make them alike
    rewards = table([[0, 7], [1, 0], [0, 5], [1, 5]])
    got = gdpo(rewards, torch.tensor([3.0, 1.0]), torch.tensor([0, 0, 1, 1]), eps=0.0)
    spread = math.sqrt((2 * 2**2 + 2 * 3**2) / 3)
    assert got.tolist() == pytest.approx([-2 / spread, 2 / spread, -3 / spread, 3 / spread])
    biased = gdpo(rewards, torch.tensor([3.0, 1.0]), torch.tensor([0, 0, 1, 1]), eps=0.0, std="biased")
    assert biased.tolist() == pytest.approx([x * math.sqrt(4 / 3) for x in got.tolist()])


def test_gdpo_with_nan() -> None:
    # reward 1 scores rows 0 and 2 (1, 3): z = -+1 / sqrt(2) there and 0 for the others; reward 2 is 0, 1, 2, 3 with
    # std sqrt(5 / 3). The sums are then z-scored over the batch.
    rewards = table([[1, 0], [None, 1], [3, 2], [None, 3]])
    a, b = 1 / (math.sqrt(2) + 1e-4), math.sqrt(5 / 3) + 1e-4
    sums = torch.tensor([-a - 1.5 / b, -0.5 / b, a + 0.5 / b, 1.5 / b], dtype=torch.float64)
    expected = (sums - sums.mean()) / (sums.std() + 1e-4)
    got = gdpo(rewards.double(), torch.ones(2), torch.zeros(4, dtype=torch.int64))
    assert got.tolist() == pytest.approx(expected.tolist(), abs=1e-9)


def test_the_batch_mean_that_gdpo_subtracts_is_only_rounding() -> None:
    rewards = torch.rand(24, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 100
    rewards[:4, 0] = rewards[5:7, 1] = rewards[6] = NAN  # a group, some rows, and all of a row
    groups = torch.arange(24) // 4
    zscores = gdpo(rewards, torch.tensor([1.0, 2.0, -0.5]), groups)
    assert zscores.sum().item() == pytest.approx(0, abs=1e-12)
    assert zscores.view(6, 4).sum(1).tolist() == pytest.approx([0.0] * 6, abs=1e-12)


def test_gdpo_does_not_let_the_largest_scale_rule() -> None:
    rewards = torch.tensor([[0, 100.0], [1, 0], [0, 0], [1, 100]])
    groups = torch.zeros(4, dtype=torch.int64)
    plain, decoupled = (f(rewards, torch.ones(2), groups) for f in (group, gdpo))
    assert plain[0] - plain[1] > 1.5  # the raw sum hardly sees the first reward
    assert decoupled[0].item() == pytest.approx(decoupled[1].item(), abs=1e-3)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e6 + 0.1, -7.7])
@pytest.mark.parametrize("n", [2, 7, 8, 64])
@pytest.mark.parametrize("function", [group, centred, rloo, gdpo])
def test_constant_group_is_exactly_zero(function, value: float, n: int) -> None:
    rewards = torch.cat([torch.full((n, 1), value), torch.arange(n).float()[:, None]])
    groups = torch.arange(2).repeat_interleave(n)
    assert function(rewards, torch.ones(1), groups)[:n].eq(0).all()
    assert groups_without_advantage(function(rewards, torch.ones(1), groups), groups).tolist() == [True, False]


def test_a_small_difference_between_large_rewards_still_teaches() -> None:
    assert centred(*one([1e6, 1e6 + 1e-6])).tolist() == pytest.approx([-5e-7, 5e-7], rel=1e-3)


def test_equal_sums_are_equal_however_they_are_rounded() -> None:
    rewards = torch.tensor([[1e5, 2e5, 3e5], [3e5, 2e5, 1e5]], dtype=torch.float64) / 3
    assert rewards.sum(-1).unique().numel() == 2  # 200,000, and 200,000 plus rounding
    assert group(rewards, torch.ones(3), torch.zeros(2, dtype=torch.int64)).eq(0).all()


def test_the_arithmetic_is_fp64_whatever_the_rewards_are() -> None:
    # the mean, 2^24 + 1, is no number of fp32
    weights, groups = torch.ones(1), torch.zeros(2, dtype=torch.int64)
    for dtype in (torch.float32, torch.int64):
        got = centred(torch.tensor([[2**24], [2**24 + 2]], dtype=dtype), weights, groups)
        assert (got.tolist(), got.dtype) == ([-1, 1], torch.float32)


@pytest.mark.parametrize("function", [group, centred, rloo, gdpo])
def test_a_reward_that_scored_no_row_changes_nothing(function) -> None:
    rewards, groups = table([[1, None], [2, None], [4, None]]), torch.zeros(3, dtype=torch.int64)
    assert function(rewards, torch.ones(2), groups).tolist() == pytest.approx(
        function(rewards[:, :1], torch.ones(1), groups).tolist()
    )


@pytest.mark.parametrize("function", [group, centred, rloo])
def test_groups_that_teach_nothing_are_those_whose_weighted_sums_are_equal(function) -> None:
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    with_gaps = one([0.1, 0.1, 0.1, NAN, 1, 2, 1, NAN], groups.tolist())
    assert groups_without_advantage(function(*with_gaps), groups).tolist() == [True, False]
    assert not function(*with_gaps)[:4].any()  # exactly 0, as guards expect
    rewards = table([[1, 2], [2, 0], [0, 4], [1, 2], [1, 2], [2, 1], [3, 0], [1, 2]])
    advantages = function(rewards, torch.tensor([2.0, 1.0]), groups)
    assert groups_without_advantage(advantages, groups).tolist() == [True, False]
    assert groups_without_advantage(advantages[:, None] * torch.eye(8)[:, 3:], groups).tolist() == [
        True,
        False,
    ]  # [B, T]


def test_an_advantage_of_rounding_teaches_nothing() -> None:
    rewards = torch.tensor([0.1, 0.1, 0.1, 0.2, 0.2, 0.3], dtype=torch.float64).reshape(2, 3)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    assert advantages[0].abs().max() > 0
    assert groups_without_advantage(advantages.flatten(), torch.arange(2).repeat_interleave(3)).tolist() == [
        True,
        False,
    ]


def test_gdpo_teaches_where_sums_are_equal_and_z_scores_are_not() -> None:
    case = table([[0, 2], [1, 0], [0, 2], [1, 0]]), torch.tensor([2.0, 1.0]), torch.zeros(4, dtype=torch.int64)
    assert groups_without_advantage(centred(*case), case[-1]).tolist() == [True]
    assert groups_without_advantage(gdpo(*case), case[-1]).tolist() == [False]


def test_a_single_score_teaches_nothing() -> None:
    only = one([1, NAN, NAN, NAN], [0, 0, 1, 1])
    for got in (group(*only), group(*only, scale="batch"), rloo(*only), gdpo(*only)):
        assert got.eq(0).all()


def test_a_row_without_any_score_changes_nothing_for_others() -> None:
    with_gap = group(*one([1, NAN, 2, 4]))
    without = group(*one([1, 2, 4]))
    assert with_gap[1] == 0
    assert with_gap[[0, 2, 3]].tolist() == without.tolist()


def test_a_group_that_a_reward_cannot_score_does_not_widen_the_batch() -> None:
    rewards = torch.tensor([[0, 10.0], [1, 10], [0, 10], [1, 10], [0, NAN], [1, NAN]])
    groups = torch.tensor([0, 0, 1, 1, 2, 2])
    full = torch.where(rewards.isnan(), 10.0, rewards)
    a, b = (group(r, torch.ones(2), groups, scale="batch") for r in (rewards, full))
    assert a.tolist() == pytest.approx(b.tolist())


@pytest.mark.parametrize("clip", [0.0, -3.0])
def test_a_clip_that_turns_advantages_around_is_refused(clip: float) -> None:
    with pytest.raises(UsageError, match="clip must be above 0"):
        group(*one([1, 2]), clip=clip)


@pytest.mark.parametrize("function", [group, centred, rloo, gdpo])
def test_clip(function) -> None:
    assert function(*one([0, 0, 0, 0, 0, 0, 0, 9]), clip=2.0).max() == 2.0
    assert function(*one([9, 9, 9, 9, 9, 9, 9, 0]), clip=2.0).min() == -2.0


@pytest.mark.parametrize("function", [group, centred, rloo, gdpo])
def test_a_group_of_one_is_an_error(function) -> None:
    with pytest.raises(UsageError, match=r"Group 7 has a single sample.*group_size of 2 or more"):
        function(*one([1, 2, 3], [0, 0, 7]))


def test_infinity_is_an_error() -> None:
    with pytest.raises(UsageError, match="Reward 0 of row 2 is infinite"):
        group(*one([1, 2, math.inf]))


@pytest.mark.parametrize("bad", [{"scale": "row"}, {"std": "sample"}])
def test_unknown_options(bad: dict) -> None:
    with pytest.raises(UsageError, match="must be"):
        group(*one([1, 2]), **bad)


def test_wrong_shapes() -> None:
    with pytest.raises(UsageError, match=r"rewards \[B, R\]"):
        group(torch.ones(4), torch.ones(1), torch.zeros(4))


batches = st.integers(2, 4).flatmap(
    lambda g: st.lists(st.lists(st.integers(-50, 50), min_size=g, max_size=g), min_size=1, max_size=4)
)


@settings(max_examples=60, deadline=None)
@given(batches, st.integers(-1000, 1000), st.sampled_from([group, centred, rloo, gdpo]))
def test_shift_invariance(values, shift: int, function) -> None:
    rewards = torch.tensor(values, dtype=torch.float64).reshape(-1, 1)
    groups = torch.arange(len(values)).repeat_interleave(len(values[0]))
    a = function(rewards, torch.ones(1), groups)
    b = function(rewards + shift, torch.ones(1), groups)
    assert torch.allclose(a, b, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(batches, st.sampled_from([0.001, 0.5, 3.0, 1e4]), st.sampled_from([group, gdpo]))
def test_scale_invariance_without_eps(values, factor: float, function) -> None:
    rewards = torch.tensor(values, dtype=torch.float64).reshape(-1, 1)
    groups = torch.arange(len(values)).repeat_interleave(len(values[0]))
    a = function(rewards, torch.ones(1), groups, eps=0.0)
    b = function(rewards * factor, torch.ones(1), groups, eps=0.0)
    assert torch.allclose(a, b, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(batches, st.randoms(use_true_random=False), st.sampled_from([group, centred, rloo, gdpo]))
def test_permutation_equivariance(values, random, function) -> None:
    rewards = torch.tensor(values, dtype=torch.float64).reshape(-1, 1)
    groups = torch.arange(len(values)).repeat_interleave(len(values[0])) * 10 + 3
    order = list(range(len(rewards)))
    random.shuffle(order)
    a = function(rewards, torch.ones(1), groups)
    b = function(rewards[order], torch.ones(1), groups[order])
    assert torch.allclose(a[order], b, atol=1e-9)


def to_go(decisions: list[list[float]], *, others: list[float] | None = None, **options: object) -> torch.Tensor:
    """Advantages of rows with these rewards, row by row; two rows are a group. `others` is a second reward."""
    rewards = torch.tensor([[sum(row)] for row in decisions], dtype=torch.float64)
    if others is not None:
        rewards = torch.cat([torch.tensor(others, dtype=torch.float64)[:, None], rewards], 1)
    groups = torch.arange(len(decisions)) // 2
    rows = [torch.tensor(row, dtype=torch.float64) for row in decisions]
    weights = torch.tensor([0.5, 2.0])[-rewards.shape[1] :]
    return compute(partial(returns_to_go, **options), rewards, weights, groups, rows)


def test_returns_to_go_by_hand() -> None:
    # The returns from each decision on are 6, 5, 3 and 2, 2, -: twice as much with the weight. Means: 8, 7, 3.
    got = to_go([[1, 2, 3], [0, 2]], scale="none")
    assert got.tolist() == [[4, 3, 3], [-4, -3, 0]]
    # Five decisions differ by 4, 3, 3, -4, -3 from their means.
    spread = math.sqrt((16 + 9 + 9 + 16 + 9) / 5)
    assert to_go([[1, 2, 3], [0, 2]], eps=0.0).tolist() == (got / spread).tolist()


def test_each_group_has_its_spread_and_the_batch_one_for_all() -> None:
    rows = [[1.0, 2.0, 3.0], [0.0, 2.0], [5.0], [1.0]]
    both = to_go(rows, eps=0.0)
    assert both[:2].tolist() == to_go(rows[:2], eps=0.0).tolist()
    assert both[2:].tolist() == [[1, 0, 0], [-1, 0, 0]]
    batch = to_go(rows, eps=0.0, scale="batch")
    spread = math.sqrt((16 + 9 + 9 + 16 + 9 + 16 + 16) / 7)
    assert batch[:, 0].tolist() == pytest.approx([4 / spread, -4 / spread, 4 / spread, -4 / spread])


def test_another_reward_is_still_to_come_at_every_decision() -> None:
    # 0.5 times 4 and 0 more, so the means rise by 1: the differences by 1 and -1.
    assert to_go([[1, 2, 3], [0, 2]], others=[4.0, 0.0], scale="none").tolist() == [[5, 4, 4], [-5, -4, 0]]


def test_decision_0_has_the_difference_of_the_totals() -> None:
    rows = torch.randn(8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rewards, groups = rows.sum(1, keepdim=True), torch.arange(8) // 4
    got = returns_to_go(rewards, torch.ones(1), groups, decision_rewards=rows, scale="none")
    assert torch.allclose(got[:, 0], centred(rewards, torch.ones(1), groups), atol=1e-12)


def test_rows_without_a_score_and_ties_have_no_returns_to_go() -> None:
    rewards, rows = table([[3], [None], [5]]), torch.tensor([[1.0, 2.0], [9.0, 9.0], [2.0, 3.0]])
    rows[1] = NAN
    got = returns_to_go(rewards, torch.ones(1), torch.zeros(3, dtype=torch.int64), decision_rewards=rows, scale="none")
    assert got.tolist() == [[-1, -0.5], [0, 0], [1, 0.5]]
    assert groups_without_advantage(to_go([[1 / 3] * 7] * 2), torch.zeros(2, dtype=torch.int64)).all()


def test_returns_to_go_need_their_sum_among_the_rewards() -> None:
    with pytest.raises(UsageError, match="episode-return"):
        returns_to_go(*one([1.0, 2.0]), decision_rewards=torch.tensor([[1.0, 1.0], [1.0, 1.5]]))
    with pytest.raises(UsageError, match="decision_rewards"):
        compute(returns_to_go, *one([1.0, 2.0]))
    with pytest.raises(UsageError, match="scale"):
        to_go([[1.0], [2.0]], scale="row")
