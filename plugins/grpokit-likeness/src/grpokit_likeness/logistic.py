"""Logistic regression with a Gaussian prior: which of two answers is right, by a weighted sum of numbers.

Of two that are compared, the numbers are the differences of their features (a Bradley-Terry model).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
"""Numbers in float64."""

_ENOUGH = 1e-10  # of a change of the coefficients
_MOST = 100  # Newton steps; ten are usual


def fit(rows: Array, shares: Array, *, precision: float, weights: Array | None = None) -> tuple[Array, Array]:
    """The most likely coefficients under a Gaussian prior, by Newton's method.

    Args:
        rows: [N, F] numbers.
        shares: [N] how often the answer was yes: 1, 0, or 0.5 for a tie.
        precision: of the prior of each coefficient.
        weights: [N] of the rows; 1 each by default.

    Returns:
        The coefficients [F], and the precision [F, F] of their posterior (Laplace's approximation).

    >>> fit(np.array([[1.0]]), np.array([1.0]), precision=1.0)[0].round(4).tolist()
    [0.4011]
    """
    features = rows.shape[1]
    weight = np.ones(len(shares)) if weights is None else weights
    coefficients = np.zeros(features)
    prior = precision * np.eye(features)
    for _ in range(_MOST):
        chances = chance(rows @ coefficients)
        slope = rows.T @ (weight * (shares - chances)) - precision * coefficients
        curvature = (rows.T * (weight * chances * (1 - chances))) @ rows + prior
        change = np.linalg.solve(curvature, slope)
        coefficients = coefficients + change
        if np.abs(change).max() < _ENOUGH:
            break
    return coefficients, curvature


def chance(logit: Array) -> Array:
    """How likely the answer is yes: of two that are compared, by how much stronger the one is."""
    return np.asarray(0.5 + 0.5 * np.tanh(logit / 2))
