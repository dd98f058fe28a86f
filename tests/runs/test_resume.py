"""Resuming is exact: from every step of a run, the rest is bit for bit what it would have been."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from grpokit import UsageError
from grpokit.runs import train as run
from whole_runs import STEPS, assert_same, measured, train_preset

SMALL = (
    f"trainer.steps={STEPS}",
    "trainer.kl_coef=0.05",
    "trainer.schedule=cosine",
    "data.limit=20",
    "run.save_every=1",
    "run.keep_last=null",
    "run.eval_every=4",
)
PRESETS = ["toy-lm", "toy-glyph", "toy-flow"]
pytestmark = pytest.mark.usefixtures("without_report")


def train(preset: str, folder: Path, *overrides: str, **options: bool) -> run.Result:
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


def test_a_changed_config_is_refused_with_the_difference(whole: tuple[str, Path], tmp_path: Path) -> None:
    preset, uninterrupted = whole
    interrupted(uninterrupted, 10, tmp_path / "again")
    before = (tmp_path / "again" / "metrics.jsonl").read_text()
    with pytest.raises(UsageError, match=r"trainer\.learning_rate: 0\.\d+ -> 0\.25\n.*--force"):
        train(preset, tmp_path / "again", "trainer.learning_rate=0.25", resume=True)
    assert (tmp_path / "again" / "metrics.jsonl").read_text() == before
    result = train(preset, tmp_path / "again", "trainer.learning_rate=1e-4", resume=True, force=True)
    assert result.steps == STEPS
    assert measured(tmp_path / "again", "metrics.jsonl") != measured(uninterrupted, "metrics.jsonl")


@pytest.mark.parametrize("step", range(1, STEPS))
def test_resume_is_bit_equal_at_every_step(whole: tuple[str, Path], step: int, tmp_path: Path) -> None:
    preset, uninterrupted = whole
    interrupted(uninterrupted, step, tmp_path / "again")
    result = train(preset, tmp_path / "again", resume=True)
    assert result.steps == STEPS
    assert_same(uninterrupted, tmp_path / "again")
    steps = [row["step"] for row in measured(tmp_path / "again", "metrics.jsonl")]
    assert steps == list(range(1, STEPS + 1))  # no gap, no duplicate
