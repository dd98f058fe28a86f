"""A Bradley-Terry model that is linear in features: which of two wins, by the difference of their features."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

_ENOUGH = 1e-10  # of a change of the coefficients
_MOST = 100  # Newton steps; ten are usual


def fit(differences: Array, shares: Array, *, precision: float, weights: Array | None = None) -> tuple[Array, Array]:
    """The most likely coefficients under a Gaussian prior, by Newton's method.

    Args:
        differences: [N, F] features of the one minus features of the other.
        shares: [N] how often the one won: 1, 0, or 0.5 for a tie.
        precision: of the prior of each coefficient.
        weights: [N] of the comparisons; 1 each by default.

    Returns:
        The coefficients [F], and the precision [F, F] of their posterior (Laplace's approximation).

    >>> fit(np.array([[1.0]]), np.array([1.0]), precision=1.0)[0].round(4).tolist()
    [0.4011]
    """
    features = differences.shape[1]
    weight = np.ones(len(shares)) if weights is None else weights
    coefficients = np.zeros(features)
    prior = precision * np.eye(features)
    for _ in range(_MOST):
        chances = chance(differences @ coefficients)
        slope = differences.T @ (weight * (shares - chances)) - precision * coefficients
        curvature = (differences.T * (weight * chances * (1 - chances))) @ differences + prior
        change = np.linalg.solve(curvature, slope)
        coefficients = coefficients + change
        if np.abs(change).max() < _ENOUGH:
            break
    return coefficients, curvature


def chance(difference: Array) -> Array:
    """How likely the one wins, by how much stronger it is."""
    return np.asarray(0.5 + 0.5 * np.tanh(difference / 2))
