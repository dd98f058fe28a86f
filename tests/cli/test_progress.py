"""What a run shows while it works, where no bar can be drawn."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from grpokit.cli import progress
from grpokit.tracking.progress import Eta

METRICS = {"reward": 0.5, "grad_norm": 1.0, "loss": 1.0, "frac_reward_zero_std": 0.0, "step_time": 20.0}


def lines_of_a_run(*, steps: int, seconds: float, completed: int = 0, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is printed without a terminal in a run whose steps take so many seconds by the clock."""
    now = 1000.0
    monkeypatch.setattr("grpokit.tracking.progress.time", SimpleNamespace(monotonic=lambda: now))
    file = io.StringIO()
    with progress.follow(Console(file=file)) as watcher:
        trainer: Any = SimpleNamespace(
            steps=steps, completed=completed, describe=lambda: "the batch arithmetic", steps_left={"": 1}
        )
        watcher.start(trainer)
        for number in range(completed + 1, steps + 1):
            now += seconds
            watcher.step(cast("Any", SimpleNamespace(step=number, metrics=METRICS, warnings=(), phase="")))
        watcher.evaluating(64)
    return file.getvalue().splitlines()


def test_quick_steps_give_the_first_line_and_ten_more(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of_a_run(steps=100, seconds=0.1, monkeypatch=monkeypatch)
    assert [line.split()[1] for line in lines if line.startswith("step ")] == [
        f"{step}/100" for step in (1, *range(10, 101, 10))
    ]
    assert lines[0] == "the batch arithmetic"
    assert lines[-1] == "drawing and scoring 64 samples of held-out prompts ..."


def test_a_wait_gives_one_line_however_long_it_takes() -> None:
    file = io.StringIO()
    with progress.follow(Console(file=file)) as watcher:
        watcher.start(cast("Any", SimpleNamespace(steps=9, completed=4, describe=lambda: "batches")))
        for words in ("votes on 2 groups", "votes on 1 group", "", "votes on 2 groups", ""):
            watcher.waiting(words)
    waits = "step 5 waits for votes on 2 groups"
    assert file.getvalue().splitlines() == ["batches", waits, waits]


def test_slow_steps_give_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of_a_run(steps=1000, seconds=25.0, completed=990, monkeypatch=monkeypatch)
    assert [line.split()[1] for line in lines[1:-1]] == [f"{step}/1000" for step in (991, 994, 997, 1000)]


def test_the_eta_goes_by_phase_and_counts_what_lies_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("grpokit.tracking.progress.time", SimpleNamespace(monotonic=lambda: now))
    eta = Eta()
    now = 300.0  # an evaluation before training
    eta.start()
    assert eta.text() == ""
    for phase, at, left, shown in (
        ("ar", 340.0, {"ar": 9, "dit": 10}, "ETA 0:12:40"),  # the first step is slow, and all that is known
        ("ar", 350.0, {"ar": 8, "dit": 10}, "ETA 0:03:00"),  # so it is left out as soon as there is another
        ("ar", 380.0, {"ar": 7, "dit": 10}, "ETA 0:05:40"),  # with an evaluation: 20 s a step on average
        ("dit", 480.0, {"ar": 7, "dit": 9}, "ETA 0:17:20"),
    ):
        now = at
        eta.step(phase, left)
        assert eta.text() == shown
    now += 60
    assert eta.text() == "ETA 0:16:20"


@pytest.mark.parametrize("width", [30, 60, 80, 120])
def test_the_bar_stays_on_one_line(width: int) -> None:
    file = io.StringIO()
    with progress.follow(Console(file=file, force_terminal=True, width=width)) as watcher:
        trainer: Any = SimpleNamespace(steps=2000, completed=1234, describe=lambda: "", steps_left={"": 8})
        watcher.start(trainer)
        watcher.step(cast("Any", SimpleNamespace(step=1235, metrics=METRICS, warnings=(), phase="")))
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).split("\r")[-1]
    assert last.count("\n") == 1
    assert len(last) <= width + 1
    if width >= 60:
        assert last.startswith("training ")
        assert re.search(r" 1235/2000 ETA \d:\d\d:\d\d", last)
    if width >= 80:
        assert "reward 0.500" in last
