"""Distributions of actions, and what an actor sees."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from grpokit_gym.actor import Actor, Gaussian


def test_the_entropy_of_gaussian_actions_is_per_dimension() -> None:
    entropy = Gaussian(mean=torch.zeros(2, 3), std=torch.full((3,), 0.5)).entropy()
    assert entropy.tolist() == pytest.approx([0.7258, 0.7258], abs=1e-4)


def test_observations_are_normalised_and_cut_at_ten_deviations() -> None:
    actor = Actor(nn.Identity(), SimpleNamespace(observation=2, actions=2, discrete=True), std=1.0)
    actor.mean.copy_(torch.tensor([1.0, -3.0]))
    actor.scale.copy_(torch.tensor([2.0, 0.5]))
    seen = actor(torch.tensor([[3.0, -2.0], [22.0, 3.0], [-50.0, -3.0]])).logits
    assert seen.tolist() == [[1.0, 2.0], [10.0, 10.0], [-10.0, 0.0]]
