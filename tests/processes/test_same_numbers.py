"""One, two and four processes learn the same, whatever their shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from in_processes import CASES, all_cases, cramped, gaussian, in_fp32, with_a_loss_scaler
from several import assert_equal, together


@pytest.mark.parametrize("size", [4, pytest.param(2, marks=pytest.mark.slow)])
def test_weights_and_metrics_are_those_of_one_process(size: int, tmp_path: Path) -> None:
    alone = all_cases()
    for answer in together(size, all_cases):
        assert not isinstance(answer, str), answer
        for name in CASES:
            assert_equal(alone[name], answer[name], 1e-12)


def test_with_a_loss_scaler() -> None:
    alone = with_a_loss_scaler()
    for answer in together(4, with_a_loss_scaler):
        assert_equal(alone, answer, 1e-12)


def test_in_single_precision(tmp_path: Path) -> None:
    alone = in_fp32()
    for answer in together(2, in_fp32):
        assert_equal(alone, answer, 1e-6)


def test_a_process_with_little_memory_shrinks_alone(tmp_path: Path) -> None:
    alone = cramped()
    assert not any(alone[2])
    for answer in together(2, cramped):
        assert_equal(alone, answer, 1e-12)
        assert "trainer.micro_batch_size is now 1" in str(answer[2])


def test_gaussian_decisions(tmp_path: Path) -> None:
    alone = gaussian()
    for answer in together(2, gaussian):
        assert_equal(alone, answer, 1e-6)
