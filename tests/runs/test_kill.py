"""kill -9 at any moment: what was saved is whole, and the resumed run ends as the uninterrupted one, record and all."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpokit.config.schema import load_config
from grpokit.runs import train as run
from whole_runs import CONFIG, kill_and_resume


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kill") / "whole"
    (folder.parent / "config.yaml").write_text(CONFIG)
    run.train(load_config(folder.parent / "config.yaml", [f"run.dir={folder}"]))
    return folder


@pytest.mark.slow
def test_a_killed_run_ends_equal(whole: Path) -> None:
    kill_and_resume(whole, 0, times=1)


@pytest.mark.very_slow
@pytest.mark.parametrize("seed", range(1, 30))
def test_killed_runs_end_equal_many_times(whole: Path, seed: int) -> None:
    kill_and_resume(whole, seed, times=3)
