"""What a process takes at its highest, with and without the help of Linux."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from grpokit.tracking import process_memory
from grpokit.tracking.process_memory import highest, rise

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


def test_without_it_a_rise_is_what_exceeds_the_highest_so_far(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    room = highest() - process_memory._status("VmRSS")
    monkeypatch.setattr(process_memory, "_PROCESS", tmp_path / "missing")
    with rise() as risen:
        fill(room + 100 * MIB)
    assert risen.bytes > 90 * MIB
    with rise() as again:
        fill(50 * MIB)
    assert again.bytes == 0
