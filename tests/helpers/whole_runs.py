"""Runs that are stopped, killed and resumed, and what must be equal where one of them was not."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from grpokit.config import presets
from grpokit.run_folder import rollout_record as record
from grpokit.runs import train as run

STEPS = 8
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
eval: {{every: 3}}
run: {{record: true, save_every: 1, keep_last: 2, best: format, threads: 1}}
"""

SMALL = (
    "trainer.prompts_per_step=2",
    "trainer.group_size=4",
    "trainer.micro_batch_size=3",
    "trainer.updates_per_rollout=2",
    "trainer.minibatches=2",
)


def train_config(config: str, folder: Path, *overrides: str, **options: Any) -> run.Result:
    """Train a preset or a file; the number of threads stays as it is."""
    threads = torch.get_num_threads()
    try:
        parsed, name = presets.read_config(config, [f"run.dir={folder}", *overrides])
        return run.train(parsed, name=name, **options)
    finally:
        torch.set_num_threads(threads)


def train_preset(preset: str, folder: Path, *overrides: str, **options: Any) -> run.Result:
    """Train a preset in small steps."""
    return train_config(preset, folder, *SMALL, *overrides, **options)


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "grpokit", "train", "config.yaml", f"run.dir={folder.name}", *options]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder.parent, env={**os.environ, "OMP_NUM_THREADS": "1"}, **quiet)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, complaint = process.communicate(timeout=240)
    assert process.returncode == 0, complaint.decode()


def measured(folder: Path, name: str) -> list[dict[str, float]]:
    """Rows of a journal without what depends on the clock or the machine."""
    rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    noise = ("time", "memory", "step_time")
    return [{k: v for k, v in row.items() if not k.startswith(noise) and not k.endswith("/seconds")} for row in rows]


def assert_same(a: Path, b: Path) -> None:
    assert measured(a, "metrics.jsonl") == measured(b, "metrics.jsonl")
    assert measured(a, "eval.jsonl") == measured(b, "eval.jsonl")
    assert_same_tensors(a, b, f"step_{newest(a / 'checkpoints'):06d}")
    for path in sorted((a / "samples").rglob("*.*")):
        assert path.read_bytes() == (b / "samples" / path.relative_to(a / "samples")).read_bytes(), path.name


def assert_same_tensors(a: Path, b: Path, checkpoint: str) -> None:
    """Weights, optimizer, and whatever else the policy saves."""
    one, other = (sorted((run / "checkpoints" / checkpoint).rglob("*.safetensors")) for run in (a, b))
    assert [file.name for file in one] == [file.name for file in other]
    for x, y in zip(map(load_file, one), map(load_file, other), strict=True):
        assert x.keys() == y.keys()
        assert all(torch.equal(x[name], y[name]) for name in x)


def assert_same_record(a: Path, b: Path) -> None:
    assert [p.name for p in sorted((a / "rollouts").iterdir())] == [p.name for p in sorted((b / "rollouts").iterdir())]
    for step in record.recorded_steps(a):
        one, other = record.read_step(a, step), record.read_step(b, step)
        assert one.rows == other.rows
        assert one.tensors.keys() == other.tensors.keys()
        assert all(torch.equal(x.nan_to_num(), other.tensors[name].nan_to_num()) for name, x in one.tensors.items())


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
    steps = newest(whole / "checkpoints")
    assert record.recorded_steps(folder) == list(range(1, steps + 1))
    assert_same_record(whole, folder)
    ours, theirs = ({p.name for p in (each / "checkpoints").iterdir()} for each in (folder, whole))
    assert ours == theirs
    assert ours >= {"best", f"step_{steps - 1:06d}", f"step_{steps:06d}"}
    assert_same_tensors(whole, folder, "best")
