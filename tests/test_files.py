"""Files are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpokit.files import read_json, replacing


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "report"
    (tmp_path / ".report.partial").write_text("half")
    with replacing(path) as temporary:
        assert not temporary.exists()
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_among_the_files_of_a_run_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("{}")
    (tmp_path / "state.json").symlink_to(tmp_path / "private")
    assert read_json(tmp_path / "private") == {}
    with pytest.raises(OSError, match="a link"):
        read_json(tmp_path / "state.json")
