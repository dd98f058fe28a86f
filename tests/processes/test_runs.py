"""Runs of several processes have one writer, stop and are killed like any other, and go on with any number of them."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from grpokit.run_folder import rollout_record as record
from in_processes import train
from several import Processes, together
from whole_runs import assert_same, assert_same_record, measured, newest

pytestmark = pytest.mark.several

STEPS = 4


@pytest.fixture(scope="module", params=[2, 4])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """The number of processes and the folder of their uninterrupted run."""
    folder = tmp_path_factory.mktemp("several") / "whole"
    assert together(request.param, train, folder, STEPS) == [STEPS] * request.param
    return request.param, folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "alone"
    assert together(1, train, folder, STEPS) == [STEPS]
    return folder


def assert_close(one: Path, other: Path, tolerance: float) -> None:
    for name in ("metrics.jsonl", "eval.jsonl"):
        rows, again = measured(one, name), measured(other, name)
        assert [row["step"] for row in rows] == [row["step"] for row in again]
        for a, b in zip(rows, again, strict=True):
            assert a.keys() == b.keys()
            for key, value in a.items():
                if key not in ("scores", "positions"):
                    assert b[key] == pytest.approx(value, abs=tolerance, rel=tolerance, nan_ok=True), (a["step"], key)


def test_they_write_what_one_would(whole: tuple[int, Path], alone: Path) -> None:
    folder = whole[1]
    assert_close(alone, folder, 1e-4)
    for path in sorted((alone / "samples" / "step_000000").rglob("*.jsonl")):
        assert path.read_bytes() == (folder / path.relative_to(alone)).read_bytes()
    assert record.recorded_steps(folder) == [*range(1, STEPS + 1)]
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in alone.iterdir())


@pytest.mark.parametrize("size", [1, 4])
def test_another_number_of_processes_goes_on(whole: tuple[int, Path], size: int, tmp_path: Path) -> None:
    """To the last digits, since gradients are summed in another order; with as many, to the bit (below)."""
    before, uninterrupted = whole
    folder = tmp_path / "run"
    answers = together(before, train, folder, STEPS, 2)
    assert all("end of the test" in answer for answer in answers), answers
    assert newest(folder / "checkpoints") == 2
    assert together(size, train, folder, STEPS, None, True) == [STEPS] * size
    assert_close(uninterrupted, folder, 1e-4)


def kill_and_resume(whole: tuple[int, Path], seed: int, folder: Path) -> None:
    """Kill one process some random while after a step was saved: the others end, and the run goes on."""
    size, uninterrupted = whole
    draw = random.Random(seed)
    processes = Processes(size, train, folder, STEPS)
    while newest(folder / "checkpoints") < 1 + draw.randrange(STEPS - 2):
        time.sleep(0.005)
    time.sleep(draw.uniform(0, 0.3))
    killed = draw.randrange(size)
    processes.processes[killed].kill()
    start = time.monotonic()
    answers = processes.answers(20)
    assert time.monotonic() - start < 15
    for rank, answer in enumerate(answers):
        assert answer in (STEPS, "ended without a word") or "Another process has ended" in answer, (rank, answer)
    assert together(size, train, folder, STEPS, None, True) == [STEPS] * size
    assert_same(uninterrupted, folder)
    assert_same_record(uninterrupted, folder)


def test_a_killed_process_ends_all_and_loses_nothing(whole: tuple[int, Path], tmp_path: Path) -> None:
    kill_and_resume(whole, 0, tmp_path / "killed")


@pytest.mark.very_slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_killed_processes_many_times(whole: tuple[int, Path], seed: int, tmp_path: Path) -> None:
    kill_and_resume(whole, seed, tmp_path / "killed")
