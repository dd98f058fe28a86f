"""Whatever stops a run of two processes, its checkpoint is kept, also where they hold the weights together."""

from __future__ import annotations

from pathlib import Path

import pytest

from in_processes import STOPPED, stop
from several import together
from whole_runs import newest

pytestmark = pytest.mark.several


@pytest.mark.parametrize("sharding", ["null", "fsdp2"])
@pytest.mark.parametrize("how", STOPPED)
def test_the_first_step_is_kept_where_the_second_fails(how: str, sharding: str, tmp_path: Path) -> None:
    message = STOPPED[how][0]
    for answer in together(2, stop, how, tmp_path / "run", f"run.sharding={sharding}"):
        assert message in answer, answer
        assert "Another process has ended" not in answer
    assert newest(tmp_path / "run/checkpoints") == 1
