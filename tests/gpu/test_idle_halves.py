"""GLM-Image's halves take turns on the GPU: the same run in less memory."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from command_line import Call
from grpokit.runs.run import Watcher
from grpokit_glm_image.tiny import tiny_pipeline
from whole_runs import assert_same, train_preset

pytestmark = pytest.mark.gpu

SHORT = ("policy.dtype=float32", "data.limit=4", "eval.every=2", "eval.samples=1", "run.save_every=1")
KL = ("trainer.kl_coef=0.05", "trainer.mixed_precision=bf16")
BOTH = "phases=[{name: tokens, policy: ar, steps: 1}, {name: painting, policy: dit, steps: 1, trainer: {kl: gaussian}}]"
EDITS = ("policy.edits=true", "data.use=grpokit_glm_image.tiny_prompts:edits")
AVERAGE = "ema={decay: 0.5}"
RUNS: dict[str, tuple[str, ...]] = {
    "writes": ("glm-image-tiny", "trainer.steps=2"),
    "writes, all weights": ("glm-image-tiny", "trainer.steps=2", "policy.lora=null", *KL),
    "paints": ("glm-image-dit-tiny", "trainer.steps=2", f"policy.{AVERAGE}"),
    "paints, all weights": (
        *("glm-image-dit-tiny", "trainer.steps=2", "policy.lora=null", "policy.token_sets=null"),
        *(*KL, "trainer.kl=gaussian"),
    ),
    "paints, edits": ("glm-image-dit-tiny", "trainer.steps=2", *EDITS),
    "writes, paints": ("glm-image-halves-tiny", BOTH, "rounds=2", f"policy.dit.{AVERAGE}", *KL),
    "writes, paints, edits": ("glm-image-halves-tiny", BOTH, "rounds=1", *EDITS),
}


def sizes(*, edits: bool) -> dict[str, int]:
    """Bytes of the weights of each half; text to image has no vision tower."""
    pipeline = tiny_pipeline()
    writer = pipeline.vision_language_encoder
    if not edits:
        writer.model.visual = writer.model.vqmodel = None
    halves: dict[str, Sequence[nn.Module]] = {
        "writes": [writer],
        "paints": [pipeline.transformer, pipeline.vae, pipeline.text_encoder],
    }
    return {
        name: sum(x.nbytes for module in half for x in (*module.parameters(), *module.buffers()))
        for name, half in halves.items()
    }


def held(folder: Path, run: Sequence[str], *overrides: str, **options: Any) -> tuple[list[int], int]:
    """Train; returns the bytes that are there after each step and at most, without those of before."""
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before, after = torch.cuda.memory_allocated(), []

    def note(report: Any) -> None:
        gc.collect()
        after.append(torch.cuda.memory_allocated() - before)

    train_preset(run[0], folder, *run[1:], *SHORT, *overrides, watcher=Watcher(step=note), **options)
    return after, torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("run", RUNS)
def test_the_same_run_in_less_memory(run: str, call: Call, tmp_path: Path) -> None:
    """Also if it is stopped and goes on; and other commands find its model complete."""
    usual, usual_peak = held(tmp_path / "usual", RUNS[run])
    idle, peak = held(tmp_path / "idle", RUNS[run], "policy.offload=idle")
    assert_same(tmp_path / "usual", tmp_path / "idle")
    other = {"writes": "paints", "paints": "writes"}
    learns = [half for half in run.split(", ") if half in other]
    of_half = sizes(edits="edits" in run)
    away = [of_half[other[half]] for half in learns * (len(usual) // len(learns))]
    assert [x - y for x, y in zip(usual, idle, strict=True)] == away
    assert usual_peak - peak >= min(of_half.values())
    shutil.rmtree(tmp_path / f"idle/checkpoints/step_{len(usual):06d}")
    (resumed,), _ = held(tmp_path / "idle", RUNS[run], "policy.offload=idle", resume=True)
    assert resumed == pytest.approx(idle[-1], rel=0.01)
    assert_same(tmp_path / "usual", tmp_path / "idle")
    for words in (("sample", "idle", "--limit", 2), ("evaluate", "idle"), ("export", "idle", "--to", "exported")):
        done = call(*words)
        assert done.code == 0, (words, done.err)
