"""A head that tells references from a policy's pictures: a weighted sum of features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpokit_likeness.logistic import Array, fit

_CONSTANT = 1e-9  # the spread of a feature that is the same in all pictures


@dataclass(frozen=True, kw_only=True)
class Head:
    """A linear head on F features.

    Attributes:
        weights: [F] of the standardised features.
        middle: [F] the features that are as near to the mean reference as to the mean of the others.
        scale: [F] by which features are divided.
    """

    weights: Array
    middle: Array
    scale: Array

    @classmethod
    def fit(cls, references: Array, others: Array, *, ridge: float) -> Head:
        """The head that tells the ones from the others best; both count the same, however many they are.

        Args:
            references: [n, F] features.
            others: [m, F] features.
            ridge: how small the weights are kept. At 0.5, two random pictures differ by about 2 nats before the head
                has seen any.
        """
        middle = (references.mean(0) + others.mean(0)) / 2
        own, other = (references - middle) ** 2, (others - middle) ** 2
        spread = own.mean(0) + other.mean(0)
        scale = np.sqrt(spread / 2)
        scale[scale < _CONSTANT] = 1.0
        rows = (np.concatenate([references, others]) - middle) / scale
        shares = np.repeat([1.0, 0.0], [len(references), len(others)])
        # The best weights are a sum of rows. So as many numbers as there are rows are enough, and soon found.
        axes, _ = np.linalg.qr(rows.T)  # [F, k]
        along, _ = fit(
            rows @ axes,
            shares,
            precision=ridge * len(middle),
            weights=np.where(shares == 1, 1.0, len(references) / len(others)),
        )
        return cls(weights=axes @ along, middle=middle, scale=scale)

    def logits(self, vectors: Array) -> Array:
        """How likely pictures are references, in nats: features [n, F] -> [n]. 0 is as likely as not."""
        parts = (vectors - self.middle) / self.scale * self.weights
        return np.asarray(parts.sum(1))  # unlike a product of matrices, the same bits whoever else is in the batch


def right_share(ones: Array, others: Array) -> float:
    """In how many pairs one of the ones [n] is above one of the others [m]: 1 all, 0.5 by chance (the area under ROC).

    >>> right_share(np.array([2.0, 0.0]), np.array([1.0, 0.0]))
    0.625
    """
    above = ones[:, None] > others
    equal = ones[:, None] == others
    return float((above + 0.5 * equal).mean())
