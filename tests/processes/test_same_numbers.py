"""One, two and four processes learn the same, whatever their shares."""

from __future__ import annotations

import pytest

from in_processes import all_cases, other_policies
from several import assert_equal, together


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.several)])
def test_weights_and_metrics_are_those_of_one_process(size: int) -> None:
    alone = all_cases()
    for answer in together(size, all_cases):
        assert not isinstance(answer, str), answer
        for name in alone:
            assert_equal(alone[name], answer[name], 1e-12)


@pytest.mark.slow
def test_other_policies() -> None:
    """In process 1 there is little memory for one of them: it shrinks its micro-batches alone."""
    alone = other_policies()
    assert not any(alone["cramped"][2])
    for answer in together(2, other_policies):
        assert not isinstance(answer, str), answer
        for name, tolerance in {"cramped": 1e-12, "single precision": 1e-6, "gaussian": 1e-6}.items():
            assert_equal(alone[name], answer[name], tolerance)
        assert "trainer.micro_batch_size is now 1" in str(answer["cramped"][2])
