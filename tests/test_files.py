"""Files are written whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from grpokit.files import partial_of, replacing


def test_what_killed_writers_left_goes_with_the_next_write(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    path = tmp_path / "report.png"
    left, another = (partial_of(path, writer=str(writer)) for writer in (ended.pid, os.getppid()))
    for partial in (left, another):
        partial.write_text("half")
    with replacing(path, shared=True) as temporary:
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert sorted(tmp_path.iterdir()) == sorted([path, another])
