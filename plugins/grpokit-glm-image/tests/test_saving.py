"""What a policy writes loads into a stock pipeline, which then writes the same tokens and draws the same picture."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from grpokit import CheckpointError, Prompt, UsageError
from grpokit.sampling import derive_seeds
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.tiny import tiny_pipeline

pytestmark = pytest.mark.usefixtures("small_draft")
PROMPT = 'a red "CAT" sign'
STOCK = """
import sys
import torch
from diffusers import GlmImagePipeline
from peft import PeftModel

base, *jobs = sys.argv[1:]
for folder, adapter in (job.split("=") for job in jobs):
    pipe = GlmImagePipeline.from_pretrained(base if adapter else folder + "/out")
    if adapter:
        PeftModel.from_pretrained(pipe.vision_language_encoder, folder + "/out")
    pipe.set_progress_bar_config(disable=True)
    pipe.vision_language_encoder.generation_config.update(top_k=1)  # the likeliest token
    noise = torch.load(folder + "/noise.pt", weights_only=True)
    made = pipe('{prompt}', height=64, width=96, num_inference_steps=2, guidance_scale=1.5, latents=noise)
    made.images[0].save(folder + "/stock.png")
assert "grpokit" not in sys.modules
"""


def build(base: Path | str, **options: Any) -> GlmImageAR:
    decode = {"steps": 2, "guidance": 1.5}
    return GlmImageAR(base, size=(64, 96), eval_temperature=0, eval_decode=decode, device="cpu", **options)


def drawn(policy: GlmImageAR) -> tuple[Image.Image, torch.Tensor]:
    """A picture, and the noise [1, C, h, w] that it began with."""
    seeds = derive_seeds(0, stream="sample", step=0, prompts=1, group_size=1)
    rollout = policy.rollout([Prompt(text=PROMPT)], 1, seeds=seeds, evaluate=True)
    return rollout.samples[0].output, policy.decoder.noise(seeds.group, 64, 96)


def change(policy: GlmImageAR) -> None:
    """Stand for a training: move everything that trains."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "tiny"
    tiny_pipeline().save_pretrained(folder)
    return folder


@pytest.mark.very_slow
def test_a_stock_pipeline_draws_what_the_policy_draws(base: Path, tmp_path: Path) -> None:
    """In a process that knows diffusers, transformers and peft alone."""
    pictures = {}
    for how in ("adapter", "merged", "full"):
        policy = build(base, lora=None if how == "full" else {"r": 4})
        untrained, _ = drawn(policy)
        change(policy)
        picture, noise = drawn(policy)
        assert difference(picture, untrained).mean() > 5
        (tmp_path / how / "out").mkdir(parents=True)
        facts = policy.export(tmp_path / how / "out", merge=how == "merged")
        assert facts["base_model"] == str(base)
        torch.save(noise, tmp_path / how / "noise.pt")
        pictures[how] = picture
    jobs = [f"{how}={'yes' if how == 'adapter' else ''}" for how in pictures]
    code = STOCK.replace("{prompt}", PROMPT)
    subprocess.run([sys.executable, "-c", code, str(base), *jobs], check=True, cwd=tmp_path)
    for how, picture in pictures.items():
        assert difference(Image.open(tmp_path / how / "stock.png"), picture).max() <= 1, how


def difference(a: Image.Image, b: Image.Image) -> np.ndarray[Any, Any]:
    return np.abs(np.asarray(a).astype(int) - np.asarray(b).astype(int))


def test_an_adapter_is_small_and_names_its_base(base: Path, tmp_path: Path) -> None:
    policy = build(base, lora={"r": 4})
    policy.export(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base)
    assert set(config["target_modules"]) == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"}


def test_an_exported_adapter_trains_on(base: Path, tmp_path: Path) -> None:
    policy = build(base, lora={"r": 4})
    change(policy)
    policy.export(tmp_path)
    other = build(base, lora={"adapter": str(tmp_path)})
    assert np.array_equal(np.asarray(drawn(other)[0]), np.asarray(drawn(policy)[0]))
    seeds = derive_seeds(0, stream="train", step=0, prompts=1, group_size=2)
    rollout = other.rollout([Prompt(text=PROMPT)], 2, seeds=seeds)
    with other.reference(), torch.no_grad():
        held_to = other.logprobs(rollout, slice(None)).logprobs
    assert torch.allclose(held_to, rollout.old.logprobs, rtol=0, atol=1e-4)  # the adapter's own start, not the base


def test_the_vision_tower_of_a_merged_model_is_that_of_the_base(base: Path, tmp_path: Path) -> None:
    policy = build(base, lora={"r": 4})
    change(policy)
    policy.export(tmp_path, merge=True)
    from diffusers import GlmImagePipeline

    merged, first = (GlmImagePipeline.from_pretrained(x).vision_language_encoder for x in (tmp_path, base))
    for name in ("visual", "vqmodel"):
        mine, theirs = (getattr(ar.model, name).state_dict() for ar in (merged, first))
        assert mine
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
    pairs = zip(merged.model.language_model.parameters(), first.model.language_model.parameters(), strict=True)
    assert sum(not torch.equal(a, b) for a, b in pairs) == 12  # six projections in each of two layers
    modes = {file.stat().st_mode for file in tmp_path.rglob("*") if file.is_file()}
    (tmp_path / "plain").touch()
    assert modes == {(tmp_path / "plain").stat().st_mode}


def test_what_cannot_be_exported_or_loaded(base: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no adapter to merge"):
        build(base).export(tmp_path, merge=True)
    state = build(base, lora={"r": 4}).state_dict()
    with pytest.raises(CheckpointError, match="belongs to another model or adapter"):
        build(base, lora={"r": 8}).load_state_dict(state)
