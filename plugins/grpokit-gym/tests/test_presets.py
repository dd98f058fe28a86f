"""The presets learn, and a resumed run is equal to the bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from whole_runs import assert_same, train_config, train_preset

GOALS = {"gym-cartpole": 475.0, "gym-pendulum": -300.0}


@pytest.mark.parametrize("preset", ["gym-cartpole", pytest.param("gym-pendulum", marks=pytest.mark.slow)])
def test_a_resume_is_bit_equal_at_every_step(preset: str, tmp_path: Path) -> None:
    few = (
        "trainer.steps=3",
        "policy.options={max_episode_steps: 30}",
        "policy.pictures=0",
        "eval.every=1",
        "run.save_every=1",
    )
    changes = (*few, "run.keep_last=null", "trainer.kl_coef=0.1")
    train_preset(preset, tmp_path / "whole", *changes)
    for step in (1, 2):
        again = tmp_path / f"again{step}"
        shutil.copytree(tmp_path / "whole", again)
        for later in range(step + 1, 4):
            shutil.rmtree(again / f"checkpoints/step_{later:06d}")
        train_preset(preset, again, *changes, resume=True)
        assert_same(tmp_path / "whole", again)


@pytest.mark.slow
def test_cartpole_is_learned_within_ten_steps(tmp_path: Path) -> None:
    done = train_config("gym-cartpole", tmp_path / "run", "trainer.steps=10", "eval.every=10")
    assert done.after.means["episode-return"] > 10 * done.before.means["episode-return"]


@pytest.mark.slow
@pytest.mark.parametrize("preset", GOALS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_presets_reach_their_goals(preset: str, seed: int, tmp_path: Path) -> None:
    done = train_config(preset, tmp_path / "run", f"seed={seed}", f"policy.seed={seed}")
    assert done.after.means["episode-return"] > GOALS[preset]
