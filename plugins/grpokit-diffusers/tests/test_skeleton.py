"""What is refused before weights are read: in folders that have none."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_edits import noise, prompts_of

from grpokit import Prompt, UsageError, registry
from grpokit_diffusers.policy import DiffusersFlow, reader
from grpokit_diffusers.tiny import PIPELINES, tiny_pipeline
from grpokit_hf.diffusion.flow_policy import FlowPolicy


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name of a tiny pipeline -> its folder, without weights."""
    folders = {name: tmp_path_factory.mktemp("saved") / name for name in PIPELINES}
    for name, folder in folders.items():
        tiny_pipeline(name).save_pretrained(folder)
        for file in folder.glob("*/*.safetensors"):
            file.unlink()
    return folders


def read(model: Path | str, **options: Any) -> Any:
    given = {"model": str(model), "size": [32, 32], "steps": 2, "eval_steps": 2, **options}
    return reader(registry.parameters("policy", "diffusers-flow", given))


@pytest.mark.parametrize("name", PIPELINES)
def test_prompts(name: str, folders: dict[str, Path]) -> None:
    for own in (read(folders[name]), read(name)):
        own.check(prompts_of(name))
        with pytest.raises(UsageError, match=r"a pipeline for edits, such as FLUX|Leave the others out"):
            own.check([Prompt(text="cat", images=[noise(64, 64)] * 11)])


@pytest.mark.parametrize("name", PIPELINES)
def test_a_text_that_would_be_cut(name: str, folders: dict[str, Path]) -> None:
    """The pipelines for edits with a vision-language model read all of it."""
    own, long = read(folders[name]), ["a street at night with lamps " * 200]
    if own.family.longest_text is None:
        own.check(prompts_of(name, long))
        return
    with pytest.raises(UsageError, match=rf"has 5,\d+ tokens .* reads at most {own.family.longest_text:,}"):
        own.check(prompts_of(name, long))


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": [30, 32]}, "both positive multiples of"),
        ({"eval_size": [32]}, "eval_size must be height and width"),
        ({"window": {"width": 3}}, "window of at most"),
        ({"lora": {"targets": "q_proj"}}, "is called 'q_proj'"),
        ({"lora": {"adapter": "./nowhere"}}, "does not exist"),
        ({"family": "nowhere:Nothing"}, "can be imported"),
    ],
    ids=str,
)
def test_settings(name: str, options: dict[str, Any], message: str, folders: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=message):
        read(folders[name], **options)


def test_an_adapter_is_compared_by_its_shapes(folders: dict[str, Path], tmp_path: Path) -> None:
    DiffusersFlow("tiny-sd3", size=(32, 32), lora={"r": 2}).export(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(read(folders["tiny-sd3"], lora={"adapter": str(tmp_path)}), FlowPolicy)
    with pytest.raises(UsageError, match=r"ZImageTransformer2DModel, which has no linear layer 'transformer_blocks\.0"):
        read(folders["tiny-z-image"], lora={"adapter": str(tmp_path)})
    wide = {f"transformer.transformer_blocks.0.attn.to_q.lora_{x}.weight": torch.ones(9, 9) for x in "AB"}
    save_file(wide, tmp_path / "wide.safetensors")
    with pytest.raises(UsageError, match="does not fit SD3Transformer2DModel"):
        read(folders["tiny-sd3"], lora={"adapter": str(tmp_path / "wide.safetensors")})


def test_a_pipeline_that_cannot_be_built_without_weights_is_left_to_the_policy(tmp_path: Path) -> None:
    tiny_pipeline("tiny-sd3").save_pretrained(tmp_path)
    (tmp_path / "vae" / "config.json").unlink()
    read(tmp_path).check([Prompt(text="cat", image=noise(8, 8))])
    with pytest.raises(UsageError, match=r"cannot be loaded: Error no file named config\.json"):
        DiffusersFlow(str(tmp_path))


def test_full_training_and_an_average(folders: dict[str, Path]) -> None:
    read(folders["tiny-flux"], lora=None, ema={"decay": 0.9}).check([Prompt(text="cat")])
