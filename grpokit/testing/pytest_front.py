"""Runs the conformance kit in pytest."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from grpokit.testing.check import Check


def parametrize_with_checks(checks: Iterable[Check]) -> pytest.MarkDecorator:
    """Run a test once per check; it takes the argument `check` and calls it.

    Slow checks carry the marker `slow`.

        @parametrize_with_checks(policy_checks(MyPolicy, ["a red cube", "a blue ball"]))
        def test_my_policy(check):
            check()

    Args:
        checks: from `policy_checks` or `reward_checks`.
    """
    return pytest.mark.parametrize(
        "check",
        [pytest.param(check, id=check.name, marks=[pytest.mark.slow] if check.slow else []) for check in checks],
    )
