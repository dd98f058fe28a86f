"""Objectives of whole groups, with teachers and with averages, learn the same in 2 processes as in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from methods_in_processes import export_adapters, of_points, of_spread, trained_points
from several import assert_equal, together

pytestmark = pytest.mark.several


def test_weights_and_metrics_are_those_of_one_process(tmp_path: Path) -> None:
    files = trained_points(tmp_path)
    alone = of_points(files)
    for answer in together(2, of_points, files, seconds=120):
        assert not isinstance(answer, str), answer
        for case in alone:
            assert_equal(alone[case], answer[case], 1e-12)


def test_weights_that_processes_hold_together(tmp_path: Path) -> None:
    export_adapters(tmp_path)
    alone = of_spread(tmp_path, None)
    for answer in together(2, of_spread, tmp_path, "fsdp2", seconds=300):
        assert not isinstance(answer, str), answer
        for case in alone:
            assert_equal(alone[case], answer[case], 3e-5 if "diffusers" in case else 1e-10)  # they compute in float32
