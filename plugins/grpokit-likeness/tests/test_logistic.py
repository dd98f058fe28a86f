"""Coefficients and their precision against equations that were solved by hand."""

import math

import numpy as np
import pytest

from grpokit_likeness.logistic import chance, fit


def test_chances_are_those_of_the_logistic_function():
    expected = [0.0, 0.25, 0.5, 0.75, 1.0]
    assert chance(np.array([-800.0, -math.log(3), 0.0, math.log(3), 800.0])).tolist() == pytest.approx(expected)


def test_one_win_balances_the_prior():
    """At w = log 3 the slope of the one win is 1/4, so that a prior of precision 1 / (4 log 3) balances it."""
    prior = 1 / (4 * math.log(3))
    coefficients, precision = fit(np.array([[1.0]]), np.array([1.0]), precision=prior)
    assert coefficients.tolist() == pytest.approx([math.log(3)])
    assert precision.tolist() == [pytest.approx([prior + 3 / 16])]


def test_three_wins_of_four_without_a_prior_are_log_3():
    differences = np.array([[1.0], [1.0], [1.0], [1.0]])
    coefficients, precision = fit(differences, np.array([1.0, 1.0, 1.0, 0.0]), precision=1e-12)
    assert coefficients.tolist() == pytest.approx([math.log(3)])
    assert precision.tolist() == [pytest.approx([4 * 3 / 16])]


def test_a_weight_is_as_many_equal_comparisons():
    rng = np.random.default_rng(0)
    differences, shares = rng.normal(size=(5, 3)), np.array([1.0, 0.0, 0.5, 1.0, 0.0])
    weights = np.array([1, 2, 3, 1, 2])
    weighted = fit(differences, shares, precision=0.5, weights=weights)
    repeated = fit(differences.repeat(weights, axis=0), shares.repeat(weights), precision=0.5)
    for one, other in zip(weighted, repeated, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


def test_a_swapped_comparison_is_the_same():
    differences = np.array([[1.0, 2.0], [0.5, -1.0]])
    one, _ = fit(differences, np.array([1.0, 0.25]), precision=1.0)
    other, _ = fit(-differences, np.array([0.0, 0.75]), precision=1.0)
    np.testing.assert_allclose(one, other, atol=1e-12)


def test_ties_and_no_comparisons_leave_the_prior():
    for rows in (0, 3):
        coefficients, precision = fit(np.zeros((rows, 2)), np.full(rows, 0.5), precision=2.0)
        assert coefficients.tolist() == [0.0, 0.0]
        assert precision.tolist() == [[2.0, 0.0], [0.0, 2.0]]


@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
def test_the_slope_is_zero_even_where_all_wins_agree(size):
    rng = np.random.default_rng(1)
    differences = size * rng.normal(size=(200, 6))
    shares = (differences @ np.arange(1.0, 7.0) > 0).astype(float)
    coefficients, _ = fit(differences, shares, precision=1.0)
    slope = differences.T @ (shares - chance(differences @ coefficients)) - coefficients
    assert np.abs(slope).max() < 1e-6 * size
