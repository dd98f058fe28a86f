"""Six samples of two groups, each with two noised copies in three dimensions: fixed numbers for pages of formula."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from grpokit import Decisions
from grpokit.flow import Matching

ROWS, COPIES, DIMENSIONS = 6, 2, 3
GROUPS = torch.tensor([0, 0, 1, 1, 0, 1])
ADVANTAGES = torch.tensor([1.5, -0.7, 0.4, -2.0, 6.0, -0.1], dtype=torch.float64)
EVERY = torch.ones(ROWS, COPIES, dtype=torch.bool)
SOME = torch.tensor([[1, 1], [1, 0], [0, 1], [1, 1], [1, 1], [1, 1]]).bool()


def wave(number: int, *shape: int) -> Tensor:
    """Numbers between -1.3 and 1.3 in fp64, the same on every machine."""
    values = torch.arange(math.prod(shape)).double()
    return (1.3 * (1.7 * values + 0.9 * number).sin()).reshape(shape)


SAMPLE, NOISE = wave(1, ROWS, 1, DIMENSIONS), wave(2, ROWS, COPIES, DIMENSIONS)  # x0, e
LEVELS = torch.tensor([[0.9], [0.35]], dtype=torch.float64).expand(ROWS, COPIES, 1)
TARGET = NOISE - SAMPLE  # of a velocity
VELOCITY, OLD_VELOCITY, REFERENCE_VELOCITY = (
    TARGET + 0.5 * wave(number, ROWS, COPIES, DIMENSIONS) for number in (3, 4, 5)
)


def view(velocity: Tensor) -> Decisions:
    """What a policy with these velocities [6, 2, 3] says of the copies."""
    return Matching(times=COPIES, weight="uniform").score(SAMPLE, NOISE, velocity, LEVELS)


def by_differences(function: Callable[[np.ndarray], float], at: Tensor) -> Tensor:
    """The gradient of a function of numbers, by central differences."""
    slope = np.zeros(at.numel())
    start = at.detach().numpy()
    for i in range(at.numel()):
        ends = []
        for step in (1e-5, -1e-5):
            moved = start.copy()
            moved.flat[i] += step
            ends.append(function(moved))
        slope[i] = (ends[0] - ends[1]) / 2e-5
    return torch.from_numpy(slope).reshape(at.shape)
