"""kill -9 at any moment: what was saved is whole, and the resumed run ends as the uninterrupted one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from test_resume import STEPS, assert_same

CONFIG = f"""
policy: {{use: toy-lm}}
data: {{use: "grpokit_toy.lm:sum_prompts", limit: 20}}
rewards: [{{use: format, pattern: '<think>.*</think><answer>[0-9]+</answer>'}}]
trainer:
  steps: {STEPS}
  prompts_per_step: 2
  group_size: 4
  updates_per_rollout: 2
  kl_coef: 0.05
  learning_rate: 1e-3
run: {{save_every: 1, eval_every: 3, keep_last: 2, best: format, threads: 1}}
"""


KEPT = ["best", f"step_{STEPS - 1:06d}", f"step_{STEPS:06d}"]


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "grpokit", "train", "config.yaml", f"run.dir={folder.name}", *options]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder.parent, env={**os.environ, "OMP_NUM_THREADS": "1"}, **quiet)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, complaint = process.communicate(timeout=240)
    assert process.returncode == 0, complaint.decode()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kill") / "whole"
    (folder.parent / "config.yaml").write_text(CONFIG)
    finish(start(folder))
    return folder


def newest(saved: Path) -> int:
    """The step of the last whole checkpoint, 0 for none."""
    return max((int(p.name.removeprefix("step_")) for p in saved.glob("step_*")), default=0)


def kill_and_resume(whole: Path, seed: int, *, times: int) -> None:
    """Kill the run, each time some random while after it has saved another step."""
    draw = random.Random(seed)
    folder = whole.parent / f"killed-{seed}"
    for attempt in range(times):
        saved = folder / "checkpoints"
        process = start(folder, *(["--resume"] if attempt else []))
        begun = newest(saved)
        while process.poll() is None and newest(saved) == begun:
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.6))
        process.kill()
        process.communicate()
    finish(start(folder, "--resume"))
    assert_same(whole, folder)
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == KEPT
    a, b = (load_file(f / "checkpoints/best/policy/model.safetensors") for f in (whole, folder))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("seed", range(5))
def test_killed_runs_end_equal(whole: Path, seed: int) -> None:
    kill_and_resume(whole, seed, times=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5, 30))
def test_killed_runs_end_equal_many_times(whole: Path, seed: int) -> None:
    kill_and_resume(whole, seed, times=3)
