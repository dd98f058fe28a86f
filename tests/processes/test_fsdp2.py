"""Weights that processes hold together: the same numbers, less memory, checkpoints that any number of them reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from grpokit import UsageError
from grpokit.processes.fsdp2 import shard
from in_processes import SPREAD, Layered, go_on, spread, spread_and_saved
from models_in_processes import of_spread, references_too_late
from several import assert_equal, together
from tiny_policies import TinyTokens

pytestmark = pytest.mark.several


@pytest.mark.parametrize("size", [2, 4])
def test_weights_and_metrics_are_those_of_one_process(size: int) -> None:
    alone = spread(None)
    for answer in together(size, spread, "fsdp2"):
        assert not isinstance(answer, str), answer
        for case in SPREAD:
            assert_equal(alone[case], answer[case], 1e-9)


def test_real_models_learn_as_in_one_process() -> None:
    alone = of_spread(None)
    for answer in together(2, of_spread, "fsdp2", seconds=300):
        assert not isinstance(answer, str), answer
        for case, ((weights, metrics, warnings), held) in alone.items():
            tolerance = 3e-5 if "diffusers" in case else 1e-10  # they compute in float32
            assert_equal((weights, metrics), answer[case][0], tolerance)
            assert bool(warnings[0]) == bool(answer[case][0][2][0]) == ("none ends" in case)
            if "adapter" in case:
                assert answer[case][1] < 0.9 * held  # of the base, which a second adapter shares


def test_a_checkpoint_is_whole_and_each_process_has_a_part(tmp_path: Path) -> None:
    (learned, part), (_, other) = together(2, spread_and_saved, tmp_path / "saved")
    assert 0.5 < part < 0.62
    assert 0.5 < other < 0.62
    for answer in together(2, go_on, tmp_path / "saved", "fsdp2"):
        assert answer[0] == learned[0]
    assert_equal(learned, go_on(tmp_path / "saved", None), 1e-11)


def test_a_reference_is_copied_before_weights_are_spread() -> None:
    for answer in together(2, references_too_late):
        assert "UsageError: The frozen reference must be copied before" in answer


def test_what_cannot_be_spread() -> None:
    with pytest.raises(UsageError, match=r"this one has none: no torch\.nn\.ModuleList"):
        shard(TinyTokens(), "fsdp2", torch.device("cpu"))
    policy = Layered()
    policy.net.blocks[1].up.weight = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)
    with pytest.raises(UsageError, match="cannot spread quantised weights"):
        shard(policy, "fsdp2", torch.device("cpu"))
