"""The peak of `grpokit plan` against what the fake CUDA device's allocator counts: toys, and models of 100 million."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import SD3Transformer2DModel
from images_job.job import job_of
from images_job.models import glm_image
from transformers import LlamaConfig, LlamaForCausalLM

import grpokit_lm
from grpokit.config import presets
from grpokit.runs.run import Watcher
from grpokit_diffusers.tiny import tiny_pipeline
from grpokit_plan import cards
from grpokit_plan.estimate import Estimate, needs_of
from whole_runs import SMALL, train_preset

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fake_cuda")]

ONE_UPDATE = ("trainer.steps=2", "trainer.updates_per_rollout=1", "trainer.minibatches=1", "data.limit=4")
LATER = ("eval.every=9", "eval.samples=1", "run.save_every=9")


def llama(folder: Path) -> Path:
    """97 million weights, with the tokenizer of the preset lm-arithmetic."""
    shutil.copytree(Path(grpokit_lm.__file__).parent / "models/arithmetic", folder)
    (folder / "model.safetensors").unlink()
    sizes = json.loads((folder / "config.json").read_text()) | {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 16384,
    }
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder)
    return folder


def writer(folder: Path) -> Path:
    """A GLM-Image with 99 million weights in the half that writes."""
    glm_image(job_of("tokens", tiny=False, threads=1)).save_pretrained(folder)
    return folder


def painter(folder: Path) -> Path:
    """A Stable Diffusion 3.5 with 103 million weights in its transformer."""
    pipeline = tiny_pipeline("tiny-sd3")
    sizes = {key: value for key, value in pipeline.transformer.config.items() if key != "_use_default_values"}
    width = {"num_layers": 5, "attention_head_dim": 64, "num_attention_heads": 12, "caption_projection_dim": 768}
    transformer = SD3Transformer2DModel.from_config(sizes | width | {"qk_norm": "rms_norm"})
    type(pipeline)(**(pipeline.components | {"transformer": transformer})).save_pretrained(folder)
    return folder


WHOLE = ("policy.ignore_eos=true",)  # every sample has the most tokens, as the plan says
FLOAT = "policy.dtype=float32"
CASES: dict[str, tuple[Any, ...]] = {  # preset, model, tokens of a prompt, how near, changes
    "lm-arithmetic": ("lm-arithmetic", None, 8, 0.15, *WHOLE),
    "Llama, 100M": ("lm-arithmetic", llama, 8, 0.15, *WHOLE, "policy.max_new_tokens=96"),
    "glm-image-tiny": ("glm-image-tiny", None, 34, 0.2, FLOAT),  # of two layers, one whole one has gradients
    "GLM-Image, 100M": ("glm-image-tiny", writer, 34, 0.15, "policy.size=[256,256]"),
    "glm-image-dit-tiny": ("glm-image-dit-tiny", None, None, 0.15, FLOAT),
    "diffusers-tiny": ("diffusers-tiny", None, None, 0.15, FLOAT),
    "SD 3.5, 100M": ("diffusers-tiny", painter, None, 0.15, FLOAT, "trainer.micro_batch_size=1"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.very_slow] if "100M" in case else []) for case in CASES]
)
def test_the_planned_peak_is_that_of_a_step(case: str, tmp_path: Path) -> None:
    preset, model, prompt, near, *changes = CASES[case]
    if model is not None:
        changes.append(f"policy.model={model(tmp_path / 'model')}")
    words = [*ONE_UPDATE, *LATER, *changes]
    gc.collect()
    held, peaks = torch.cuda.memory_allocated(), list[float]()
    train_preset(
        preset,
        tmp_path / "run",
        *words,
        watcher=Watcher(step=lambda report: peaks.append(report.metrics["memory/peak_mb"])),
    )
    config, _ = presets.read_config(preset, [*SMALL, *words])
    _, needs = needs_of(config, reference=False, prompt_tokens=prompt)
    moment, planned = Estimate(card=cards.by_name("80 GB"), needs=needs).peak
    measured = peaks[1] * 2**20 - held
    assert planned == pytest.approx(measured, rel=near), f"{moment}: {planned / 2**20:.1f}, {measured / 2**20:.1f} MiB"
