"""DGPO beside a page of its formula, and beside the numbers that its authors' lines give."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from noised_copies import (
    ADVANTAGES,
    COPIES,
    EVERY,
    GROUPS,
    LEVELS,
    NOISE,
    OLD_VELOCITY,
    REFERENCE_VELOCITY,
    SAMPLE,
    SOME,
    TARGET,
    VELOCITY,
    by_differences,
    view,
)
from torch import Tensor

from grpokit import Decisions, UsageError
from grpokit.flow import Matching
from grpokit_methods.dgpo import DGPO

BETA, CLIP = 3.0, 0.05


def errors(velocity: np.ndarray | Tensor) -> np.ndarray:
    return ((np.asarray(velocity) - TARGET.numpy()) ** 2).mean(-1)


def page(velocity: np.ndarray, mask: Tensor, groups: Tensor, *, weighed_at: np.ndarray) -> np.ndarray:
    """The loss of each copy; weights and clips, which have no gradient, are those of other velocities."""
    now, before, held = errors(weighed_at), errors(OLD_VELOCITY), errors(REFERENCE_VELOCITY)
    loss = np.zeros(mask.shape)
    for row, copy in mask.nonzero().tolist():
        members = [i for i in range(len(groups)) if groups[i] == groups[row] and mask[i, copy]]
        leads = [float(ADVANTAGES[i]) * (now[i, copy] - held[i, copy]) for i in members]
        weight = 1 / (1 + math.exp(-BETA / len(members) * sum(leads)))
        advantage = float(ADVANTAGES[row])
        ratio = math.exp(before[row, copy] - now[row, copy])
        is_clipped = ratio > 1 + CLIP if advantage > 0 else ratio < 1 - CLIP
        error = now if is_clipped else errors(velocity)
        loss[row, copy] = weight * advantage * error[row, copy]
    return loss


@pytest.mark.parametrize(
    ("groups", "mask"), [(GROUPS, EVERY), (torch.zeros_like(GROUPS), SOME)], ids=["two groups", "one, with a mask"]
)
def test_loss_and_gradient_are_those_of_the_formula(groups: Tensor, mask: Tensor) -> None:
    velocity = VELOCITY.clone().requires_grad_()
    loss = DGPO(beta=BETA, clip_range=CLIP)(
        view(velocity), view(OLD_VELOCITY), ADVANTAGES, mask, view(REFERENCE_VELOCITY), groups=groups
    )
    at = VELOCITY.numpy()
    expected = torch.from_numpy(page(at, mask, groups, weighed_at=at))
    torch.testing.assert_close(loss.value.detach(), expected, rtol=0, atol=1e-12)
    (slope,) = torch.autograd.grad(loss.value.sum(), velocity)
    differences = by_differences(lambda v: page(v, mask, groups, weighed_at=at).sum(), VELOCITY)
    torch.testing.assert_close(slope, differences, rtol=0, atol=1e-9)
    clipped = loss.stats["clip_low"] | loss.stats["clip_high"]
    assert 0 < int(clipped.sum()) < int(mask.sum())
    assert not slope[clipped].any()


def test_the_authors_lines_give_the_same() -> None:
    """The means over the six samples at each level, by Flow-Factory's trainer on these tensors."""
    loss = DGPO(beta=BETA, clip_range=CLIP)(
        view(VELOCITY), view(OLD_VELOCITY), ADVANTAGES, EVERY, view(REFERENCE_VELOCITY), groups=GROUPS
    )
    assert loss.value.mean(0).tolist() == pytest.approx([0.021381369470138262, 0.20100942519354772], abs=1e-12)


def test_at_the_reference_every_weight_is_a_half() -> None:
    """Then a step is that of the advantages alone."""
    same = view(VELOCITY)
    loss = DGPO()(same, same, ADVANTAGES, EVERY, same, groups=GROUPS)
    assert loss.stats["dgpo/weight"].unique().tolist() == [0.5]
    assert loss.stats["ratio"].unique().tolist() == [1.0]
    expected = 0.5 * ADVANTAGES[:, None] * torch.from_numpy(errors(VELOCITY))
    torch.testing.assert_close(loss.value, expected, rtol=0, atol=1e-15)


def test_a_group_that_is_right_already_counts_less() -> None:
    """Its good samples have smaller errors than the reference's, and its bad ones larger."""
    scale = torch.where(ADVANTAGES > 0, 0.5, 1.5)[:, None, None]
    weights = []
    for factor in (scale, 2 - scale):
        velocity = TARGET + factor * (REFERENCE_VELOCITY - TARGET)
        new = view(velocity)
        loss = DGPO(beta=BETA)(new, new, ADVANTAGES, EVERY, view(REFERENCE_VELOCITY), groups=GROUPS)
        weights.append(loss.stats["dgpo/weight"])
    assert bool((weights[0] < 0.5).all())
    assert bool((weights[1] > 0.5).all())


def test_errors_with_weights_are_refused() -> None:
    new = Matching(times=COPIES, weight="t").score(SAMPLE, NOISE, VELOCITY, LEVELS)
    with pytest.raises(UsageError, match=r"policy\.matching={times: 4, weight: uniform, shared_noise: true}"):
        DGPO()(new, new, ADVANTAGES, EVERY, new, groups=GROUPS)


def test_other_decisions_are_refused() -> None:
    tokens = Decisions(logprobs=torch.zeros(6, 2))
    with pytest.raises(UsageError, match="objective 'dgpo' compares errors of predictions, but this policy's"):
        DGPO()(tokens, tokens, ADVANTAGES, EVERY, tokens, groups=GROUPS)
    with pytest.raises(UsageError, match="DGPO needs the reference's log-probs"):
        DGPO()(view(VELOCITY), view(VELOCITY), ADVANTAGES, EVERY, groups=GROUPS)
