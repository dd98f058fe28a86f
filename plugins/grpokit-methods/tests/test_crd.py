"""CRD beside a page of its formula, and beside the numbers that its authors' lines give."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from noised_copies import (
    ADVANTAGES,
    EVERY,
    GROUPS,
    OLD_VELOCITY,
    SOME,
    TARGET,
    VELOCITY,
    by_differences,
    view,
)
from torch import Tensor

from grpokit import Decisions, UsageError
from grpokit_methods.crd import CRD

BOUND = 5.0


def own_reward(velocity: np.ndarray, row: int, copy: int, *, scaled_at: np.ndarray) -> float:
    """By how much the prediction is better than the old policy's, each error over its mean distance."""
    target = TARGET[row, copy].numpy()

    def error(v: np.ndarray, scale: np.ndarray) -> float:
        distance = max(np.abs(scale[row, copy] - target).mean(), 1e-5)
        return float(((v[row, copy] - target) ** 2).mean() / distance)

    old = OLD_VELOCITY.numpy()
    return error(old, old) - error(velocity, scaled_at)


def page(
    velocity: np.ndarray,
    mask: Tensor,
    groups: Tensor,
    beta: float,
    temperature: float | None,
    *,
    centred_at: np.ndarray,
) -> np.ndarray:
    """The loss of each copy; centres and divisors, which have no gradient, are those of other velocities."""
    given = [min(max(a / BOUND, -1), 1) / 2 + 0.5 for a in ADVANTAGES.tolist()]
    loss = np.zeros(mask.shape)
    for row, copy in mask.nonzero().tolist():
        members = [i for i in range(len(groups)) if groups[i] == groups[row] and mask[i, copy]]
        own = {i: own_reward(centred_at, i, copy, scaled_at=centred_at) for i in members}
        mine = own_reward(velocity, row, copy, scaled_at=centred_at)
        squares = []
        for sign in (1, -1):
            parts = [1.0 if temperature is None else math.exp(sign * given[i] / temperature) for i in members]
            shares = [part / sum(parts) for part in parts]
            own_centre = sum(share * own[i] for share, i in zip(shares, members, strict=True))
            given_centre = sum(share * given[i] for share, i in zip(shares, members, strict=True))
            squares.append((beta * (mine - own_centre) - (given[row] - given_centre)) ** 2)
        loss[row, copy] = BOUND / beta * sum(squares) / 2
    return loss


@pytest.mark.parametrize(("beta", "temperature"), [(1.0, None), (2.5, None), (1.0, 0.3), (2.5, 0.3)])
@pytest.mark.parametrize(
    ("groups", "mask"), [(GROUPS, EVERY), (torch.zeros_like(GROUPS), SOME)], ids=["two groups", "one, with a mask"]
)
def test_loss_and_gradient_are_those_of_the_formula(
    groups: Tensor, mask: Tensor, beta: float, temperature: float | None
) -> None:
    velocity = VELOCITY.clone().requires_grad_()
    objective = CRD(beta=beta, temperature=temperature)
    loss = objective(view(velocity), view(OLD_VELOCITY), ADVANTAGES, mask, groups=groups)
    at = VELOCITY.numpy()
    expected = page(at, mask, groups, beta, temperature, centred_at=at)
    torch.testing.assert_close(loss.value.detach(), torch.from_numpy(expected), rtol=0, atol=1e-12)
    (slope,) = torch.autograd.grad(loss.value.sum(), velocity)
    differences = by_differences(lambda v: page(v, mask, groups, beta, temperature, centred_at=at).sum(), VELOCITY)
    torch.testing.assert_close(slope, differences, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("beta", "temperature", "expected"),
    [
        (1.0, None, [[0.43622714224896, 0.5615009567628285], [0.06677181837263918, 0.1442014547910438]]),
        (2.5, None, [[0.3121379984360036, 0.4953986206189184], [0.08125153922370978, 0.1529210811645532]]),
        (1.0, 0.3, [[0.6342431519755919, 0.8126963951646242], [0.07094615676693312, 0.15952213602354134]]),
        (2.5, 0.3, [[0.44428557462657564, 0.7002316431365092], [0.08208608887547661, 0.16780174887451385]]),
    ],
)
def test_the_authors_lines_give_the_same(beta: float, temperature: float | None, expected: list[list[float]]) -> None:
    """The means over each group at each level, by Flow-Factory's trainer on these tensors."""
    objective = CRD(beta=beta, temperature=temperature)
    loss = objective(view(VELOCITY), view(OLD_VELOCITY), ADVANTAGES, EVERY, groups=GROUPS)
    means = [loss.value[group == GROUPS].mean(0).tolist() for group in (0, 1)]
    assert means == [pytest.approx(each, abs=1e-12) for each in expected]


def test_a_small_temperature_takes_the_best_and_the_worst_as_centres() -> None:
    loss = CRD(temperature=1e-4)(view(VELOCITY), view(OLD_VELOCITY), ADVANTAGES, EVERY, groups=GROUPS)
    own, given = loss.stats["crd/own_reward"], (ADVANTAGES / BOUND).clamp(-1, 1) / 2 + 0.5
    for group in (0, 1):
        rows = (group == GROUPS).nonzero().flatten().tolist()
        ends = [max(rows, key=lambda row: given[row]), min(rows, key=lambda row: given[row])]
        for row in rows:
            squares = [((own[row] - own[end]) - (given[row] - given[end])) ** 2 for end in ends]
            torch.testing.assert_close(loss.value[row], BOUND * sum(squares) / 2)


def test_at_the_old_policy_the_loss_is_the_spread_of_the_rewards() -> None:
    same = view(VELOCITY)
    loss = CRD()(same, same, ADVANTAGES, EVERY, groups=GROUPS)
    assert not loss.stats["crd/own_reward"].any()
    assert loss.stats["ratio"].unique().tolist() == [1.0]
    given = (ADVANTAGES / BOUND).clamp(-1, 1) / 2 + 0.5
    for group in (0, 1):
        rows = group == GROUPS
        expected = BOUND * (given[rows] - given[rows].mean()).square()
        torch.testing.assert_close(loss.value[rows], expected[:, None].expand(-1, 2), rtol=0, atol=1e-14)


def test_a_copy_without_advantage_counts_for_the_others_alone() -> None:
    advantages = torch.where(torch.arange(6) == 4, 0.0, ADVANTAGES)
    new, old = view(VELOCITY), view(OLD_VELOCITY)
    whole = CRD()(new, old, advantages, EVERY, groups=GROUPS).value
    assert not whole[4].any()
    rest = torch.arange(6) != 4
    alone = CRD()(new.select(rest), old.select(rest), advantages[rest], EVERY[rest], groups=GROUPS[rest]).value
    assert float((whole[:2] - alone[:2]).abs().min()) > 1e-3


def test_other_decisions_are_refused() -> None:
    tokens = Decisions(logprobs=torch.zeros(6, 2))
    with pytest.raises(UsageError, match="objective 'crd' compares errors of predictions, but this policy's"):
        CRD()(tokens, tokens, ADVANTAGES, EVERY, groups=GROUPS)
