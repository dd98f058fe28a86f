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


HERE = {"use": "capsule_worlds:Game"}
THERE = {"use": "capsule", "world": "capsule_worlds:Game", "python": sys.executable, "path": str(WORLDS)}
LIBRARIES = {
    "openenv": {"environment": "openenv_game:Game", "show": "hint", "requires": ["openenv==0.10.0"]},
    "verifiers": {"environment": {"taskset": {"id": "verifiers_game"}}, "requires": ["verifiers==0.4.0"]},
}


def run(name: str, world: dict[str, Any], *, steps: int = 2, resume: bool = False, **options: Any) -> None:
    train(
        name,
        resume=resume,
        policy={**POLICY, "world": world, "lora": {"r": 4}, **options},
        rewards=[{"use": "episode-return"}],
        eval__every=1,
        trainer__steps=steps,
    )


def test_a_run_has_the_bits_of_one_in_its_own_process(folder: Path) -> None:
    run("here", HERE)
    run("there", THERE)
    assert_same(folder / "here", folder / "there")
    assert 0 < rows("there/metrics.jsonl")[0]["reward"] < 1


@pytest.mark.slow
def test_errors_of_a_world_become_the_same_messages(folder: Path) -> None:
    run("here", {**HERE, "forgives": False}, world_errors="message", temperature=3.0)
    run("there", {**THERE, "forgives": False}, world_errors="message", temperature=3.0)
    assert_same(folder / "here", folder / "there")
    with pytest.raises(RunError, match=r"failed in turn \d, .*ValueError .*capsule_worlds.py, line \d+"):
        run("stopped", {**THERE, "forgives": False}, temperature=3.0)


@pytest.mark.slow
@pytest.mark.parametrize("use", ["capsule", *LIBRARIES])
def test_a_resume_has_the_same_bits(folder: Path, use: str) -> None:
    world = {"use": use, "path": str(WORLDS), **LIBRARIES[use]} if use in LIBRARIES else THERE
    run("whole", world, world_errors="end")
    run("half", world, world_errors="end", steps=1)
    run("half", world, world_errors="end", resume=True)
    assert_same(folder / "whole", folder / "half")
    assert rows("whole/metrics.jsonl")[0]["reward"] > 0
