"""A pipeline that this package does not know: what is said, and how someone else adds it in one file."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import diffusers
import pytest
import torch
from diffusers import (
    AuraFlowPipeline,
    AuraFlowTransformer2DModel,
    DDIMScheduler,
    FlowMatchEulerDiscreteScheduler,
)
from transformers import UMT5Config, UMT5EncoderModel

from grpokit import Prompt, UsageError
from grpokit.sampling import derive_seeds, normals
from grpokit_diffusers.known import FAMILIES
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_diffusers.tiny import tiny_pipeline
from grpokit_hf.models import dtypes


@pytest.fixture
def auraflow() -> AuraFlowPipeline:
    known = tiny_pipeline("tiny-sd3")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return AuraFlowPipeline(
            tokenizer=known.tokenizer_3,
            text_encoder=UMT5EncoderModel(
                UMT5Config(vocab_size=512, d_model=32, d_kv=8, d_ff=37, num_layers=1, num_heads=2)
            ).eval(),
            vae=known.vae,
            transformer=AuraFlowTransformer2DModel(
                sample_size=16,
                num_mmdit_layers=1,
                num_single_dit_layers=1,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=32,
                caption_projection_dim=32,
                pos_embed_max_size=256,
            ).eval(),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=1.73),
        )


def test_someone_elses_pipeline(auraflow: AuraFlowPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named in `family`, from a folder: the stock pipeline's latents, and an adapter that trains."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    auraflow.save_pretrained(tmp_path / "aura")
    policy = DiffusersFlow(
        str(tmp_path / "aura"),
        family="their_package.auraflow:AuraFlow",
        size=(32, 32),
        steps=3,
        eval_steps=3,
        lora={"r": 4},
    )
    latents = []
    pictures = policy.family.pictures
    monkeypatch.setattr(policy.family, "pictures", lambda x, size: latents.append(x) or pictures(x, size))
    seeds = derive_seeds(1, stream="train", step=0, prompts=1, group_size=2)
    policy.rollout([Prompt(text="cat")], 2, seeds=seeds, evaluate=True)
    auraflow.set_progress_bar_config(disable=True)
    for row in range(2):
        noise = normals(seeds.row[row : row + 1], 4 * 16 * 16, start=2**40).float().view(1, 4, 16, 16)
        stock = auraflow(
            "cat", height=32, width=32, num_inference_steps=3, guidance_scale=3.5, latents=noise, output_type="latent"
        ).images[0]
        assert float((latents[0][row] - stock).abs().max()) <= 1e-5 * float(stock.abs().max())
    rollout = policy.rollout([Prompt(text="cat")], 2, seeds=seeds)
    again = policy.logprobs(rollout, slice(0, 3)).logprobs
    assert float((again.detach() - rollout.old.logprobs).abs().max()) < 1e-4
    again.sum().backward()
    assert all(bool(p.grad.any()) for name, p in policy.model.named_parameters() if "lora_B" in name)


OTHERS = re.compile(
    "Video|Audio|Inpaint|Control|Fill|Refiner|Img2Img|T2V|I2V|TI2VA|Framepack|AnyFlow|AceStep|LTX|Wan|SanaWM|"
    "ChronoEdit|Lucy|Mochi|EasyAnimate|Kandinsky6SR"
)
"""Films, sound, masks, hints, upscalers, and what begins with a noised picture."""


def test_the_docs_list_all_pipelines_of_flow_matching() -> None:
    docs = (Path(__file__).parents[3] / "docs/diffusers.md").read_text(encoding="utf-8")
    unlisted = []
    for name in dir(diffusers):
        if name.endswith("Pipeline") and not OTHERS.search(name):
            scheduler = inspect.get_annotations(getattr(diffusers, name).__init__).get("scheduler")
            if "FlowMatch" in str(scheduler) and f"`{name}`" not in docs:
                unlisted.append(name)
    assert unlisted == []
    assert [name for name in FAMILIES if f"| `{name}`" not in docs] == []


def without_weights(pipeline: object, folder: Path) -> str:
    """A folder in which weights are not there: whoever reads them fails in another way."""
    pipeline.save_pretrained(folder)  # type: ignore[attr-defined]
    for file in folder.glob("*/*.safetensors"):
        file.unlink()
    return str(folder)


def test_an_unknown_family_is_refused_before_weights_are_read(auraflow: AuraFlowPipeline, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"is a AuraFlowPipeline, and diffusers-flow knows ChromaP.*ZImagePipeline.*policy\.family="
    ):
        DiffusersFlow(without_weights(auraflow, tmp_path / "aura"))
    with pytest.raises(UsageError, match="is a AuraFlowPipeline"):
        DiffusersFlow(auraflow)


def test_a_scheduler_without_flow_matching_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    pipeline = tiny_pipeline("tiny-sd3")
    pipeline.register_modules(scheduler=DDIMScheduler())
    with pytest.raises(UsageError, match=r"is DDIMScheduler\. Expected FlowMatchEuler"):
        DiffusersFlow(without_weights(pipeline, tmp_path / "sd3"))
    with pytest.raises(UsageError, match=r"is DDIMScheduler\. Expected FlowMatchEuler"):
        DiffusersFlow(pipeline)


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("nowhere.at_all:Family", "can be imported, got 'nowhere.at_all:Family'"),
        ("grpokit_diffusers.family:Nothing", "can be imported"),
        ("grpokit_diffusers.family", "can be imported"),
        ("grpokit_diffusers.family:Told", "not a subclass of grpokit_diffusers.family.PipelineFamily"),
    ],
)
def test_a_family_that_is_none(family: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DiffusersFlow("tiny-sd3", family=family)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": ""}, "model must be a hub id, a folder or a pipeline of diffusers, got an empty name"),
        ({"model": 3}, "got an? int"),
        ({"model": "./nowhere"}, "model folder 'nowhere' does not exist"),
        ({"size": (30, 32)}, "multiples of 4"),
        ({"model": "./nowhere", "window": {"width": 9}}, "only 4 steps of the schedule"),
        ({"lora": {"targets": ["q_proj"]}}, "no linear layer of SD3Transformer2DModel is called 'q_proj'"),
        ({"dtype": "int8"}, "dtype must be"),
        ({"revision": "main"}, "revision is for the hub's repositories"),
    ],
    ids=str,
)
def test_settings_that_cannot_work(options: dict[str, object], message: str) -> None:
    defaults: dict[str, object] = {"model": "tiny-sd3", "size": (32, 32), "steps": 4}
    with pytest.raises(UsageError, match=message):
        DiffusersFlow(**defaults | options)


def test_damaged_folders(tmp_path: Path) -> None:
    """No index, an index that cannot be read, and weights that are not there."""
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(UsageError, match=r"no model_index\.json"):
        DiffusersFlow(str(folder))
    (folder / "model_index.json").write_text("{")
    with pytest.raises(UsageError, match=r"model_index\.json' is damaged"):
        DiffusersFlow(str(folder))
    with pytest.raises(UsageError, match="no weights in 'text_encoder'"):
        DiffusersFlow(without_weights(tiny_pipeline("tiny-flux"), tmp_path / "flux"))


def test_a_model_that_cannot_be_built_leaves_the_default_type_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtypes, "cpu_has_bfloat16", lambda: True)
    tiny_pipeline("tiny-sd3").save_pretrained(tmp_path)
    path = tmp_path / "transformer/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_layers": "three"}))
    with pytest.raises(UsageError, match="cannot be loaded"):
        DiffusersFlow(str(tmp_path), size=(32, 32), steps=4, dtype="bfloat16")
    assert torch.get_default_dtype() == torch.float32
