"""A run that begins with a trained LoRA: what it adds, what it is held to, and files that cannot be used."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_edits import case, prompts_of
from torch import Tensor

from grpokit import UsageError
from grpokit.sampling import derive_seeds
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_diffusers.tiny import PIPELINES, tiny_pipeline
from teaching import assert_teaches

SEEDS = derive_seeds(1, stream="train", step=0, prompts=1, group_size=2)


def build(model: Any, **options: Any) -> DiffusersFlow:
    return DiffusersFlow(model, **{"size": (32, 32), "steps": 2, "eval_steps": 2} | options)


def pictures(policy: DiffusersFlow, model: str = "tiny-sd3") -> np.ndarray:
    samples = policy.rollout(prompts_of(model, ["cat"]), 2, seeds=SEEDS, evaluate=True).samples
    return np.stack([np.asarray(sample.output, dtype=int) for sample in samples])


def exported(folder: Path, model: str = "tiny-sd3", **lora: Any) -> np.ndarray:
    """Writes a LoRA that changes much, and returns the pictures with it."""
    policy = build(model, lora={"r": 2, "alpha": 6, **lora})
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if "lora_B" in name:
                p.add_(0.3)
    policy.export(folder)
    return pictures(policy, model)


@pytest.mark.parametrize(
    ("model", "lora"),
    [
        *(case(model, {}) for model in PIPELINES),
        ("tiny-sd3", {"dora": True}),
        ("tiny-flux", {"targets": "all-linear"}),
    ],
    ids=str,
)
def test_an_exported_adapter_trains_on(model: str, lora: dict[str, Any], tmp_path: Path) -> None:
    """It draws its pictures, only it trains, the reference is where it began, and a second export equals the first."""
    trained = exported(tmp_path, model, **lora)
    policy = build(model, lora={"adapter": tmp_path})
    assert np.abs(pictures(policy, model) - trained).max() <= 1
    assert np.abs(pictures(build(model), model) - trained).max() > 1
    parameters = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    first = load_file(tmp_path / "pytorch_lora_weights.safetensors")
    assert len(parameters) == len(first)
    assert all(p.dtype == torch.float32 for p in parameters.values())
    rollout = policy.rollout(prompts_of(model, ["cat"]), 2, seeds=SEEDS)
    with policy.reference():
        assert torch.equal(policy.logprobs(rollout, slice(0, 2)).logprobs, rollout.old.logprobs)
    policy.logprobs(rollout, slice(0, 2)).logprobs.sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in parameters.values())
    (tmp_path / "again").mkdir()
    policy.export(tmp_path / "again")
    again = load_file(tmp_path / "again" / "pytorch_lora_weights.safetensors")
    assert again.keys() == first.keys()
    assert all(torch.equal(x, again[name]) for name, x in first.items())


def factors(rank: int, *, width: int = 32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(rank, width, generator=generator), torch.randn(width, rank, generator=generator)


@pytest.mark.parametrize("names", ["kohya", "diffusers"])
def test_a_published_file_adds_what_diffusers_adds(names: str, tmp_path: Path) -> None:
    """By names of other trainers, with a scale by `alpha`, and layers of several ranks, of one name's end."""
    tensors = {}
    layers = {"double_blocks_0_img_attn_proj": "transformer_blocks.0.attn.to_out.0", "single_blocks_0_linear2": ""}
    for rank, (kohya, layer) in enumerate(layers.items(), start=2):
        down, up = factors(rank, width=32)
        if names == "kohya":
            wide = torch.randn(rank, 160) / 8 if "linear2" in kohya else down
            own = {"lora_down.weight": wide, "lora_up.weight": up, "alpha": torch.tensor(1.0)}
            tensors |= {f"lora_unet_{kohya}.{part}": x for part, x in own.items()}
        elif layer:
            tensors |= {f"transformer.{layer}.lora_A.weight": down, f"transformer.{layer}.lora_B.weight": up}
            tensors[f"transformer.{layer}.alpha"] = torch.tensor(1.0)
    save_file(tensors, tmp_path / "theirs.safetensors")
    policy = build("tiny-flux", lora={"adapter": str(tmp_path / "theirs.safetensors")})
    stock = tiny_pipeline("tiny-flux")
    stock.load_lora_weights(tmp_path, weight_name="theirs.safetensors")
    stock.fuse_lora()
    stock.unload_lora_weights()
    expected = pictures(build(stock, lora=None))
    assert np.abs(pictures(policy) - expected).max() <= 1
    assert np.abs(pictures(build("tiny-flux")) - expected).max() > 1


def changed(folder: Path, change: str) -> None:
    """Spoils an exported file."""
    file = folder / "pytorch_lora_weights.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("lora_A.weight"))
    if change == "torn":
        file.write_bytes(file.read_bytes()[:100])
        return
    x = tensors.pop(name)
    if change == "shape":
        tensors[name] = x[:, :-1].contiguous()
    elif change == "layer":
        tensors |= {f"transformer.nowhere.lora_{part}.weight": x.clone() for part in "AB"}
    elif change == "convolution":
        tensors |= {f"transformer.pos_embed.proj.lora_{part}.weight": x.clone() for part in "AB"}
    elif change == "encoder":
        tensors |= {name: x, "text_encoder.layer.lora_A.weight": x.clone()}
    save_file(tensors if change != "empty" else {}, file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("torn", "pytorch_lora_weights.safetensors' cannot be read"),
        ("shape", "does not fit SD3Transformer2DModel"),
        ("layer", "SD3Transformer2DModel, which has no linear layer 'nowhere'"),
        ("convolution", "has no linear layer 'pos_embed.proj'"),
        ("encoder", "1 tensor of another kind, such as 'text_encoder.layer.lora_A.weight'"),
        ("factor", "has one factor of two"),
        ("empty", "is empty. Only LoRA and DoRA of the transformer"),
    ],
)
def test_files_that_cannot_be_used(change: str, message: str, tmp_path: Path) -> None:
    exported(tmp_path)
    changed(tmp_path, change)
    with pytest.raises(UsageError, match=f"lora: adapter: .*{message}"):
        build("tiny-sd3", lora={"adapter": tmp_path})


def test_adapters_that_are_not_there_are_refused_before_the_model_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "two").mkdir()
    for name in ("a", "b"):
        (tmp_path / "two" / f"{name}.safetensors").touch()
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "pytorch_lora_weights.bin").touch()
    (tmp_path / "lora.pt").touch()
    for adapter, message in (
        ("./nowhere", "'./nowhere' does not exist"),
        (tmp_path / "empty", "has no .safetensors file. Give"),
        (tmp_path / "two", r"has 2: a\.safetensors, b\.safetensors\. Name one"),
        (tmp_path / "lora.pt", "is not a safetensors file.*weights_only=True"),
        (tmp_path / "pickled", "has no .safetensors file.*weights_only=True"),
        ("nobody/nothing", "The adapter 'nobody/nothing' is not a folder here and not in the Hugging Face cache"),
    ):
        with pytest.raises(UsageError, match=message):
            build("./no-model", lora={"adapter": adapter})
        with pytest.raises(UsageError, match=f"^teachers: it: .*{message}"):
            build("./no-model", lora={"r": 4}, teachers={"it": str(adapter)})
    with pytest.raises(UsageError, match="teachers: it: expected a file, a folder or a hub id, got nothing"):
        build("./no-model", lora={"r": 4}, teachers={"it": None})
    with pytest.raises(UsageError, match="has its own r"):
        build("./no-model", lora={"adapter": "./nowhere", "r": 4})
    with pytest.raises(UsageError, match="revision is for the hub's repositories"):
        build("./no-model", lora={"adapter": tmp_path / "two", "revision": "main"})


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("tiny-sd3", {"guidance": 2.0}),
        ("tiny-flux", {"sampler": "ode"}),
        ("tiny-sd3", {"quantization": "4bit"}),
    ],
    ids=str,
)
def test_exported_adapters_are_teachers_around_one_base(model: str, options: dict[str, Any], tmp_path: Path) -> None:
    if "quantization" in options:
        pytest.importorskip("bitsandbytes")
    assert_teaches(partial(build, model), prompts_of(model, ["cat", "dog", "bird"]), tmp_path, **options)
