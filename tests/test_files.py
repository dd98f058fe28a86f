"""Files are written whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpokit.files import parse_json, partial_of, read_json, replacing, writer_of


def test_what_killed_writers_left_goes_with_the_next_write(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    path = tmp_path / "report[1]"
    left = partial_of(path, writer=writer_of(ended.pid))
    others = [
        partial_of(path, writer=writer_of(os.getppid())),  # at work
        partial_of(path, writer=f"elsewhere-{ended.pid}"),  # of another machine, where it may be
        partial_of(tmp_path / "report[1].png"),
    ]
    for partial in (left, *others):
        partial.write_text("half")
    with replacing(path, shared=True) as temporary:
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_a_link_among_the_files_of_a_run_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("{}")
    (tmp_path / "state.json").symlink_to(tmp_path / "private")
    assert read_json(tmp_path / "private") == {}
    with pytest.raises(OSError, match="a link"):
        read_json(tmp_path / "state.json")


def test_json_has_at_most_a_hundred_levels() -> None:
    """What copies and records a prompt calls itself for each, and would end a run in its first step."""
    mixed = '{"a": [' * 50 + "1" + "]}" * 50
    assert parse_json(mixed) == json.loads(mixed)
    for text in (f"[{mixed}]", "[" * 600 + "]" * 600, "[" * 100_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(text)
