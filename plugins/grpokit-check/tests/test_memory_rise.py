"""What a process takes at its highest, as Linux says."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from grpokit_check.reward.memory_rise import rise

MIB = 2**20

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc/self/clear_refs"
)


def fill(size: int) -> None:
    """Take memory from the system: malloc may have some left that is no rise."""
    np.frombuffer(mmap.mmap(-1, size), dtype=np.uint8).fill(1)


def test_a_rise_is_that_of_its_own_context() -> None:
    for size in (200, 50):
        with rise() as risen:
            fill(size * MIB)
        assert 0.9 * size < risen.bytes / MIB < size + 40
    with rise() as nothing:
        pass
    assert nothing.bytes < 20 * MIB
