"""Resuming is exact: from every step of a run, the rest is bit for bit what it would have been."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from grpokit import UsageError
from grpokit.config import presets, yaml_source
from grpokit.config.schema import to_dict
from grpokit.runs import train as run
from grpokit.runs.resuming import changed_config, refuse_changes
from grpokit.tracking.step_report import StepReport
from whole_runs import assert_same, measured, train_preset

STEPS = 5
SMALL = (
    f"trainer.steps={STEPS}",
    "trainer.kl_coef=0.05",
    "trainer.schedule=cosine",
    "data.limit=20",
    "run.save_every=1",
    "run.keep_last=null",
    "eval.every=2",
)
PRESETS = ["toy-lm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("toy-glyph", "toy-flow"))]
pytestmark = pytest.mark.usefixtures("without_report")


def train(preset: str, folder: Path, *overrides: str, **options: Any) -> run.Result:
    return train_preset(preset, folder, *SMALL, *overrides, **options)


@pytest.fixture(scope="module", params=PRESETS)
def whole(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, without_report: None
) -> tuple[str, Path]:
    """A preset and the folder of its uninterrupted run, with a checkpoint after every step."""
    folder = tmp_path_factory.mktemp(request.param) / "whole"
    train(request.param, folder)
    return request.param, folder


def interrupted(whole: Path, step: int, folder: Path) -> None:
    """A copy of a run as it was left when only the checkpoint after `step` had been saved, and more was journaled."""
    shutil.copytree(whole, folder)
    for checkpoint in (folder / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("step_")) > step:
            shutil.rmtree(checkpoint)


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(place.name.removeprefix("step_")) for place in (folder / "checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("whole", ["toy-lm"], indirect=True)
def test_a_run_that_is_saved_by_the_clock_resumes_to_the_bit(whole: tuple[str, Path], tmp_path: Path) -> None:
    preset, by_number = whole
    by_clock = ("run.save_every=0", "run.save_minutes=1e-9")
    train(preset, tmp_path / "r", *by_clock)
    assert checkpoints(tmp_path / "r") == [1, 2, 3, 4, 5]
    interrupted(tmp_path / "r", 3, tmp_path / "again")
    train(preset, tmp_path / "again", *by_clock, resume=True)
    assert_equal(by_number, tmp_path / "again")


@pytest.mark.parametrize("minutes", [60, 0])
def test_the_clock_saves_only_when_it_is_time(minutes: int, tmp_path: Path) -> None:
    train("toy-lm", tmp_path / "r", "trainer.steps=2", "run.save_every=0", f"run.save_minutes={minutes}")
    assert checkpoints(tmp_path / "r") == [2]


@pytest.mark.parametrize("whole", ["toy-lm"], indirect=True)
def test_a_changed_config_is_refused_with_the_difference(whole: tuple[str, Path], tmp_path: Path) -> None:
    preset, uninterrupted = whole
    interrupted(uninterrupted, 4, tmp_path / "again")
    before = (tmp_path / "again" / "metrics.jsonl").read_text()
    with pytest.raises(UsageError, match=r"trainer\.learning_rate: 0\.\d+ -> 0\.25\n.*--force"):
        train(preset, tmp_path / "again", "trainer.learning_rate=0.25", resume=True)
    assert (tmp_path / "again" / "metrics.jsonl").read_text() == before
    result = train(preset, tmp_path / "again", "trainer.learning_rate=1e-4", resume=True, force=True)
    assert result.steps == STEPS
    assert measured(tmp_path / "again", "metrics.jsonl") != measured(uninterrupted, "metrics.jsonl")


def test_a_resume_may_score_in_another_place_and_stop_for_other_reasons(tmp_path: Path) -> None:
    before, _ = presets.read_config("toy-lm")
    (tmp_path / "config.yaml").write_text(yaml_source.to_yaml(to_dict(before)))
    for free in (
        "rewards.0.workers=2",
        "rewards.1.placement={http: 'http://gpu-2:8009'}",
        "rewards.0.on_error=skip",
        "rewards.1.skip_limit=0.9",
        "trainer.max_logprob_diff=0.5",
        "trainer.max_zero_std_steps=null",
    ):
        refuse_changes(tmp_path, changed_config(tmp_path, presets.read_config("toy-lm", [free])[0]))
    with pytest.raises(UsageError, match=r"rewards\.1\.weight"):
        refuse_changes(tmp_path, changed_config(tmp_path, presets.read_config("toy-lm", ["rewards.1.weight=2"])[0]))


class StoppedError(Exception):
    """Ends a run in a test."""


def assert_equal(uninterrupted: Path, again: Path) -> None:
    assert_same(uninterrupted, again)
    steps = [row["step"] for row in measured(again, "metrics.jsonl")]
    assert steps == list(range(1, STEPS + 1))  # no gap, no duplicate


def test_resume_is_bit_equal_at_every_step(whole: tuple[str, Path], tmp_path: Path) -> None:
    """One run that ends, and is resumed, after each of its steps."""
    preset, uninterrupted = whole

    def end(report: StepReport) -> None:
        raise StoppedError

    for step in range(STEPS):
        with pytest.raises(StoppedError):
            train(preset, tmp_path / "again", watcher=run.Watcher(step=end), resume=step > 0)
    assert train(preset, tmp_path / "again", resume=True).steps == STEPS
    assert_equal(uninterrupted, tmp_path / "again")


@pytest.mark.parametrize("whole", ["toy-lm"], indirect=True)
@pytest.mark.parametrize("step", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_was_journaled_beyond_the_checkpoint_is_cut(whole: tuple[str, Path], step: int, tmp_path: Path) -> None:
    """Before an evaluation, and at one."""
    preset, uninterrupted = whole
    interrupted(uninterrupted, step, tmp_path / "again")
    train(preset, tmp_path / "again", resume=True)
    assert_equal(uninterrupted, tmp_path / "again")
