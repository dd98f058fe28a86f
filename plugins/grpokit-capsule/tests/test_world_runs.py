"""Whole runs with a world in a capsule: the bits of a run that has it in its own process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from grpokit import RunError
from small_runs import rows, train, write_prompts
from whole_runs import assert_same

WORLDS = Path(__file__).parent / "scorers"
POLICY = {"use": "hf-lm", "model": "grpokit_lm:models/guess", "dtype": "float32", "max_new_tokens": 48, "min_p": 0.1}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRPOKIT_CAPSULES", str(tmp_path / "capsules"))
    monkeypatch.chdir(tmp_path)
    write_prompts(["Game 12.", "Game 3."])
    return tmp_path


def run(name: str, *, capsule: bool = True, steps: int = 2, resume: bool = False, **options: Any) -> None:
    place = {"use": "capsule", "world": "capsule_worlds:Game", "python": sys.executable, "path": str(WORLDS)}
    world = place if capsule else {"use": "capsule_worlds:Game"}
    world = {**world, "forgives": options.pop("forgives", True)}
    train(
        name,
        resume=resume,
        policy={**POLICY, "world": world, "lora": {"r": 4}, **options},
        rewards=[{"use": "episode-return"}],
        eval__every=1,
        trainer__steps=steps,
    )


def test_a_run_has_the_bits_of_one_in_its_own_process(folder: Path) -> None:
    run("here", capsule=False)
    run("there")
    assert_same(folder / "here", folder / "there")
    assert 0 < rows("there/metrics.jsonl")[0]["reward"] < 1


def test_a_resume_has_the_same_bits(folder: Path) -> None:
    run("whole")
    run("half", steps=1)
    run("half", resume=True)
    assert_same(folder / "whole", folder / "half")


def test_errors_of_a_world_become_the_same_messages(folder: Path) -> None:
    options = {"forgives": False, "world_errors": "message", "temperature": 3.0}
    run("here", capsule=False, **options)
    run("there", **options)
    assert_same(folder / "here", folder / "there")
    with pytest.raises(
        RunError, match=r"world 'grpokit-capsule:capsule' failed in turn \d, .*ValueError .*capsule_worlds.py, line \d+"
    ):
        run("stopped", **{**options, "world_errors": "stop"})
