"""Memory that the C library keeps, counted in pages that the system had to fill."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from grpokit.training.devices import keep_freed_memory

keep_freed_memory()
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    parts = [torch.ones(3_000_000) for _ in range(10)]  # 12 MB each
    del parts
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.parametrize(("settings", "kept"), [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "65536"}, False)])
def test_freed_memory_is_used_again(settings: dict[str, str], kept: bool) -> None:
    """Ten tensors have 29,000 pages of 4 KiB; what the environment says about malloc wins."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | settings
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True)
    assert (int(done.stdout) < 300) == kept, done.stdout
