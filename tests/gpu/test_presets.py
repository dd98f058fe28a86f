"""What users do with a preset, on a GPU: it gives the numbers of a CPU, and the host waits for it seldom."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from command_line import Call
from grpokit.runs.run import Watcher
from whole_runs import measured, newest, train_preset

pytestmark = pytest.mark.gpu

FLOAT = "policy.dtype=float32"
WRITES = "{name: tokens, policy: ar, steps: 1, trainer: {learning_rate: 1e-4}}"
PAINTS = "{name: painting, policy: dit, steps: 1, trainer: {learning_rate: 1e-4}}"
STEPS = ("trainer.steps=2",)
PRESETS = {  # what a short run needs beside its preset
    "toy-lm": STEPS,
    "toy-glyph": STEPS,
    "toy-flow": STEPS,
    "lm-arithmetic": STEPS,
    "lm-countdown": STEPS,
    "gym-pendulum": (*STEPS, "trainer.device=cuda", "policy.options={max_episode_steps: 10}", "policy.pictures=0"),
    "lm-guess": STEPS,
    "diffusers-tiny": (*STEPS, FLOAT),
    "glm-image-tiny": (*STEPS, FLOAT),
    "glm-image-dit-tiny": (*STEPS, FLOAT),
    "glm-image-halves-tiny": (f"phases=[{WRITES}, {PAINTS}]", "rounds=1", FLOAT),
}
SHORT = ("data.limit=4", "eval.every=2", "eval.samples=1", "run.save_every=1", "trainer.learning_rate=1e-4")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_and_what_is_made_of_it(preset: str, call: Call, tmp_path: Path) -> None:
    """Train, evaluate, save, lose the last step, resume, sample, evaluate, replay, export."""
    train_preset(preset, tmp_path / "run", *PRESETS[preset], *SHORT, "run.record=true")
    before = measured(tmp_path / "run", "metrics.jsonl")
    shutil.rmtree(tmp_path / "run/checkpoints/step_000002")
    train_preset(preset, tmp_path / "run", *PRESETS[preset], *SHORT, "run.record=true", resume=True)
    assert_near(measured(tmp_path / "run", "metrics.jsonl"), before, 1e-4)
    assert newest(tmp_path / "run/checkpoints") == 2
    for words in (
        ("sample", "run", "--limit", 2),
        ("evaluate", "run"),
        ("replay", "run", "--step", 2),
        *([] if preset.startswith(("toy", "gym")) else [("export", "run", "--to", "exported")]),
    ):
        done = call(*words)
        assert done.code == 0, (words, done.err)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_numbers_are_those_of_the_cpu(preset: str, tmp_path: Path) -> None:
    """With `trainer.device=cpu` all parts of a policy work there, though the machine has a GPU."""
    for device in ("cpu", "cuda"):
        train_preset(preset, tmp_path / device, *PRESETS[preset], *SHORT, f"trainer.device={device}")
    here, there = (measured(tmp_path / device, "metrics.jsonl") for device in ("cpu", "cuda"))
    assert_near(there, here, 1e-3)
    here, there = (measured(tmp_path / device, "eval.jsonl") for device in ("cpu", "cuda"))
    assert_near(there, here, 1e-3)
    weights = [
        sorted((tmp_path / device / "checkpoints/step_000002").rglob("*.safetensors")) for device in ("cpu", "cuda")
    ]
    assert weights[0]
    for one, other in zip(*(map(load_file, files) for files in weights), strict=True):
        assert one.keys() == other.keys()
        differ = torch.cat([((other[name].double() - x.double()).abs() > 1e-5).flatten() for name, x in one.items()])
        assert differ.float().mean() < 0.02  # where a gradient is nearly 0, Adam's step has either sign


LORA, SD3 = ("lm-arithmetic", *STEPS), ("diffusers-tiny", *STEPS, FLOAT)
COPIES = ("policy.window=null", "policy.matching={times: 2}", "trainer.kl=velocity", "trainer.kl_coef=0.05")
WAYS = {
    "full training": (*LORA, "policy.lora=null"),
    "DoRA": (*LORA, "policy.lora={r: 4, dora: true}"),
    "averages of 8 bits": (*LORA, "policy.lora=null", "trainer.optimizer=adamw_8bit"),
    "averages of 8 bits, paged": (*LORA, "policy.lora=null", "trainer.optimizer=paged_adamw_8bit"),
    "KL": (*LORA, "trainer.kl_coef=0.05"),
    "EMA": (*SD3, "policy.ema={decay: 0.5}"),
    "bf16": (*LORA, "trainer.mixed_precision=bf16"),
    "fp16": (*LORA, "trainer.mixed_precision=fp16"),
    "no fast path": (*LORA, "policy.fast=false"),
    "fewer rows at a time": (*LORA, "trainer.rollout_batch_size=4"),
    "flows: full training": (*SD3, "policy.lora=null"),
    "flows: KL": (*SD3, "trainer.kl_coef=0.05", "trainer.kl=gaussian"),
    "flows: noised copies": (*SD3, *COPIES, "trainer.clip_range=1e-5"),
    "flows: noised copies, nft": (*SD3, *COPIES, "trainer.objective=nft"),
    "flows: noised copies, dgpo": (
        *SD3,
        *COPIES,
        "policy.matching={times: 2, weight: uniform, shared_noise: true}",
        "trainer.objective=dgpo",
    ),
    "flows: noised copies, crd, an average draws": (
        *SD3,
        *COPIES,
        "trainer.objective=crd",
        "policy.old_ema={decay: 0.5, ramp: 0.001}",
    ),
    "flows: bf16 weights": ("diffusers-tiny", *STEPS, "policy.dtype=bfloat16"),
    "flows: a base of 4 bit": (*SD3, "policy.quantization=4bit"),
    "autoregressive: a base of 8 bit": ("glm-image-tiny", *STEPS, FLOAT, "policy.quantization=8bit"),
    "offload": ("glm-image-tiny", *STEPS, FLOAT, "policy.offload=idle"),
    "autoregressive: bf16 weights": ("glm-image-tiny", *STEPS, "policy.dtype=bfloat16"),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_train(way: str, tmp_path: Path) -> None:
    preset, *overrides = WAYS[way]
    result = train_preset(preset, tmp_path / "run", *overrides, *SHORT)
    assert result.steps == 2
    rows = measured(tmp_path / "run", "metrics.jsonl")
    low = "16" in way
    assert all(abs(row.get("logprob_diff/mean", 0.0)) < (0.1 if low else 1e-4) for row in rows)


@pytest.mark.filterwarnings("ignore:preset diffusers-tiny sets trainer.kl_coef:UserWarning")
@pytest.mark.parametrize("preset", ["diffusers-tiny", "glm-image-tiny", "lm-arithmetic"])
def test_a_run_teaches_another(preset: str, call: Call, tmp_path: Path) -> None:
    """The same numbers as on the CPU."""
    train_preset(preset, tmp_path / "run", *PRESETS[preset], *SHORT, "trainer.learning_rate=1e-2")
    assert call("export", tmp_path / "run", "--to", tmp_path / "exported").code == 0
    teachers = f"policy.teachers={{one: {tmp_path / 'exported'}, other: {tmp_path / 'exported'}}}"
    rows = []
    for device in ("cpu", "cuda"):
        words = (*PRESETS[preset], *SHORT, "trainer.objective=opd", "rewards=[]", f"trainer.device={device}")
        train_preset(preset, tmp_path / device, *words, teachers)
        rows.append(measured(tmp_path / device, "metrics.jsonl"))
    assert_near(rows[1], rows[0], 1e-3)
    assert all(abs(row["opd/kl"]) > 1e-6 for row in rows[1])


# Waits of the host in the second step, with what the run writes of it.
WAITS = {
    "toy-lm": 72,
    "toy-glyph": 26,
    "toy-flow": 25,
    "lm-arithmetic": 27,
    "lm-countdown": 31,
    "lm-guess": 60,
    "diffusers-tiny": 36,
    "glm-image-tiny": 35,
    "glm-image-dit-tiny": 35,
    "glm-image-halves-tiny": 37,
}


@pytest.mark.parametrize("preset", WAITS)
def test_a_step_waits_seldom(preset: str, tmp_path: Path, fake_cuda: ModuleType) -> None:
    totals, lines = [], []
    with fake_cuda.counted() as count:

        def note(report: Any) -> None:
            totals.append(count.waits.total())
            lines.append(count.waits.copy())

        train_preset(
            preset,
            tmp_path / "run",
            *PRESETS[preset],
            *SHORT,
            "eval.every=9",
            "run.save_every=9",
            watcher=Watcher(step=note),
        )
    second = totals[1] - totals[0]
    listed = "\n".join(f"{n:5} {line}" for line, n in (lines[1] - lines[0]).most_common())
    assert second <= WAITS[preset], f"{second} waits in a step of {preset}:\n{listed}"


@pytest.mark.parametrize(("preset", "most"), [("lm-arithmetic", 154), ("glm-image-tiny", 111)])
def test_a_captured_step_of_decoding_launches_few_kernels(
    preset: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_cuda: ModuleType
) -> None:
    """Of 3 and of 2 layers; each takes at least 2 microseconds for each token."""
    launches: list[int] = []
    end = torch.cuda.CUDAGraph.capture_end

    def ended(graph: Any) -> None:
        end(graph)
        launches.append(graph.launches())

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_end", ended)
    train_preset(preset, tmp_path / "run", "trainer.steps=1", *SHORT, "policy.dtype=bfloat16")
    assert launches
    assert max(launches) <= most


def assert_near(given: list[dict[str, float]], expected: list[dict[str, float]], near: float) -> None:
    assert len(given) == len(expected)
    for row, other in zip(given, expected, strict=True):
        assert row.keys() == other.keys()
        for name, x in row.items():
            assert x == (
                pytest.approx(other[name], rel=near, abs=near) if isinstance(x, float | dict) else other[name]
            ), name
