"""The checks of advantages: right ones pass, and each mistake is caught by its check."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from grpokit import registry
from grpokit.advantages import group
from grpokit_check import advantage_checks, outcomes

BUILT_IN = [spec.name for _, spec in registry.installed("advantage")]


def failed(checks: Any) -> dict[str, str]:
    return {o.name: o.message for o in outcomes(checks) if o.failed}


def ranks(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    """A right one that shares no code with the built-in ones: the rank in the group, from -1 to 1."""
    totals = (rewards.nan_to_num() * weights.to(rewards)).sum(1)
    scored = ~rewards.isnan().all(1)
    advantages = torch.zeros_like(totals)
    for row in scored.nonzero()[:, 0].tolist():
        others = totals[(groups == groups[row]) & scored]
        advantages[row] = (totals[row] - others).sign().sum() / max(len(others) - 1, 1)
    return advantages


@pytest.mark.parametrize("function", [*[registry.create("advantage", name) for name in BUILT_IN], ranks])
def test_right_advantages(function: Callable[..., Tensor]) -> None:
    assert not failed(advantage_checks(function))


@pytest.mark.parametrize("params", [{"scale": "batch"}, {"scale": "none"}, {"clip": 1.0}])
@pytest.mark.parametrize("name", ["group", "returns_to_go"])
def test_parameters_keep_the_contract(name: str, params: dict[str, Any]) -> None:
    assert not failed(advantage_checks(registry.create("advantage", name, params)))


def turned_round(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    return -group(rewards, weights, groups)


def half_turned(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    """Right at the ends, wrong between."""
    advantages = group(rewards, weights, groups)
    return torch.where(advantages.abs() < 1, -advantages, advantages)


def unweighted(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    return group(rewards, torch.ones_like(weights), groups)


def first_reward_only(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    return group(rewards[:, :1], weights[:1], groups)


def in_single_precision(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    return group(rewards.float(), weights, groups).to(rewards.dtype)


def always_double(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    return group(rewards.double(), weights, groups)


def batch_mean(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    """z-scores over the whole batch, which rank prompts by how easy they are."""
    return group(rewards, weights, torch.zeros_like(groups))


def doubled_at_the_top(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    """The rows with the largest advantage of the whole batch count twice."""
    advantages = group(rewards, weights, groups)
    top = advantages.abs() > 0.999 * advantages.abs().max()
    return torch.where(top, 2 * advantages, advantages)


def without_eps(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    totals = (rewards.nan_to_num() * weights.to(rewards)).sum(1)
    parts = [totals[groups == number] for number in groups.tolist()]
    mean, std = (torch.stack([read(part) for part in parts]) for read in (torch.mean, torch.std))
    return (totals - mean) / std


def nan_spreads(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    totals = (rewards * weights.to(rewards)).sum(1)
    means = torch.stack([totals[groups == number].mean() for number in groups.tolist()])
    return totals - means


def missing_is_zero(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    return group(rewards.nan_to_num(), weights, groups)


def missing_row_counts(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    """Unscored rows get 0, but lower the others' mean."""
    scored = ~rewards.isnan().all(1)
    return torch.where(scored, group(rewards.nan_to_num(), weights, groups), 0.0)


def groups_by_place(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    return group(rewards, weights, groups.sort().values)


def in_blocks(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    """As if the rows of a group stood side by side."""
    sizes = [int((groups == number).sum()) for number in dict.fromkeys(groups.tolist())]
    return group(rewards, weights, torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)))


def ids_as_places(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    return group(rewards, weights, groups) * (1 + groups.clamp(max=30).to(rewards) / 100)


class Noisy:
    calls = 0

    def __call__(self, rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
        self.calls += 1
        return group(rewards, weights, groups) * (1 + 1e-12 * self.calls)


def in_place(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    advantages = group(rewards, weights, groups)
    rewards += 0.5
    return advantages


def draws(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    torch.rand(())
    return group(rewards, weights, groups)


def per_reward(rewards: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    return torch.stack([group(column[:, None], weights[:1], groups) for column in rewards.T], dim=1)


BROKEN: list[tuple[Callable[..., Tensor], set[str]]] = [
    (turned_round, {"better", "weights", "precision"}),
    (half_turned, {"better", "weights", "precision"}),
    (unweighted, {"weights"}),
    (first_reward_only, {"weights"}),
    (in_single_precision, {"precision"}),
    (always_double, {"shape"}),
    (batch_mean, {"equal-rewards", "groups-independent", "weights", "precision", "better"}),
    (doubled_at_the_top, {"groups-independent"}),
    (without_eps, {"equal-rewards", "missing-scores"}),
    (nan_spreads, {"missing-scores"}),
    (missing_is_zero, {"missing-scores"}),
    (missing_row_counts, {"missing-scores"}),
    (groups_by_place, {"order"}),
    (in_blocks, {"order"}),
    (ids_as_places, {"order"}),
    (Noisy(), {"pure"}),
    (in_place, {"pure"}),
    (draws, {"pure"}),
]


@pytest.mark.parametrize(("function", "caught"), BROKEN)
def test_what_is_wrong_is_caught(function: Callable[..., Tensor], caught: set[str]) -> None:
    found = failed(advantage_checks(function))
    assert set(found) == caught, found
    assert all(re.match(r"Expected .*; got .*\. Usual cause: .*\.$", m, re.DOTALL) for m in found.values()), found


def test_a_column_per_reward_is_no_advantage() -> None:
    assert "(9, 2)" in failed(advantage_checks(per_reward))["shape"]
    assert "got [1.0]" in failed(advantage_checks(lambda *_: [1.0]))["shape"]


def test_a_light_module_is_asked_for() -> None:
    names = [check.name for check in advantage_checks(partial(group, clip=2.0), module="grpokit.builtin.plugin")]
    assert names[-1] == "light-plugin"
