"""How much of the gradient is direction, and how much is noise.

Each group of samples gives a gradient of its own, and their mean is that of the batch. With products of gradients of
different groups, in which noise averages out, one estimates the squared length of the true gradient; what the squares
of single gradients have beyond it is noise (McCandlish et al., 2018, arXiv:1812.06162, appendix A.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_FLIPS = 2000  # random signs that noise alone is compared with


@dataclass(frozen=True, kw_only=True)
class Direction:
    """What the gradients of n groups say together.

    Attributes:
        signal: the squared length of the true gradient, as estimated; below 0 where noise hides it.
        noise: the variance of a single group's gradient, summed over the parameters.
        chance: how probable a signal of this size is where there is none.
        groups: n.
    """

    signal: float
    noise: float
    chance: float
    groups: int

    @property
    def is_clear(self) -> bool:
        """Whether there is a direction beyond chance."""
        return self.chance < 0.01

    def cosine(self, groups: int) -> float:
        """The expected cosine between the gradients of two batches of so many groups."""
        if self.signal <= 0:
            return 0.0
        return self.signal / (self.signal + self.noise / groups)

    @property
    def length(self) -> float:
        """The length that the true gradient has at most, within two standard errors."""
        error = self.noise * math.sqrt(2 / (self.groups * (self.groups - 1)))
        return math.sqrt(max(0.0, self.signal + 2 * error))

    @property
    def balance(self) -> float:
        """The number of groups at which signal equals noise; infinite without a signal."""
        return self.noise / self.signal if self.signal > 0 else float("inf")


def direction(gradients: Tensor) -> Direction:
    """What the gradients of groups [n, d] say together; n is at least 2."""
    products = (gradients @ gradients.T).double()  # [n, n]
    n = len(products)
    lengths = products.diagonal()
    signal = float(products.sum() - lengths.sum()) / (n * (n - 1))
    noise = float(lengths.mean()) - signal
    # Without a direction, each group's gradient might as well have the other sign.
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (_FLIPS, n), generator=generator, dtype=torch.float64) * 2 - 1
    by_chance = (signs @ products * signs).sum(1) - lengths.sum()  # [flips]
    by_chance /= n * (n - 1)
    as_large = int((by_chance >= signal).sum())
    return Direction(signal=signal, noise=noise, chance=(1 + as_large) / (1 + _FLIPS), groups=n)


def shared(first: Tensor, second: Tensor) -> float:
    """The product of two true gradients, from the gradients of the same groups [n, d], without the noise they share."""
    products = (first @ second.T).double()
    n = len(products)
    return float(products.sum() - products.diagonal().sum()) / (n * (n - 1))
