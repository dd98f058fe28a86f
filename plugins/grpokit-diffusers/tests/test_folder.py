"""Folders of pipelines that lack something, are damaged, or are none: one message, before any weights are read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpokit import Prompt, UsageError
from grpokit.sampling import derive_seeds
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_diffusers.tiny import tiny_pipeline


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "sd3"
    tiny_pipeline("tiny-sd3").save_pretrained(folder)
    return folder


def build(model: Path | str, **options: Any) -> DiffusersFlow:
    return DiffusersFlow(str(model), **{"size": (32, 32), "steps": 2, "eval_steps": 2} | options)


def indexed(**entries: Any) -> Callable[[Path], None]:
    """Changes entries of model_index.json; None leaves one out."""

    def change(folder: Path) -> None:
        file = folder / "model_index.json"
        index = json.loads(file.read_text()) | entries
        file.write_text(json.dumps({name: entry for name, entry in index.items() if entry is not None}))

    return change


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: shutil.rmtree(folder / name)


def empty(name: str) -> Callable[[Path], None]:
    return lambda folder: [file.unlink() for file in (folder / name).iterdir()] and None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("tokenizer"), "has no 'tokenizer', which its model_index.json names"),
        (without("scheduler"), "has no 'scheduler', which"),
        (without("transformer"), "has no 'transformer', which"),
        (empty("tokenizer_2"), "no words in 'tokenizer_2': expected tokenizer.json"),
        (indexed(transformer=[None, None]), "has no transformer: its model_index.json names none"),
        (indexed(tokenizer=None), "has no tokenizer: its model_index.json names none"),
        (indexed(vae=[]), r"model_index\.json' is damaged: expected each part's library and class"),
        (indexed(_class_name=None), "names no class of diffusers: its _class_name is None"),
        (indexed(_class_name=["mine", "Mine"]), r"_class_name is \['mine', 'Mine'\]. Code that a repository brings"),
        (
            indexed(scheduler=["diffusers", "FlowMatchHeunDiscreteScheduler"]),
            r"is FlowMatchHeunDiscreteScheduler\. Expected FlowMatchEulerDiscreteScheduler: log-probs are",
        ),
    ],
)
def test_what_a_folder_lacks(saved: Path, tmp_path: Path, change: Callable[[Path], None], message: str) -> None:
    shutil.copytree(saved, tmp_path / "sd3")
    change(tmp_path / "sd3")
    with pytest.raises(UsageError, match=message):
        build(tmp_path / "sd3")


def test_sd3_without_its_largest_encoder(saved: Path, tmp_path: Path) -> None:
    """As `from_pretrained(..., text_encoder_3=None, tokenizer_3=None)` and `save_pretrained` leave it."""
    shutil.copytree(saved, tmp_path / "sd3")
    indexed(text_encoder_3=[None, None], tokenizer_3=[None, None])(tmp_path / "sd3")
    for name in ("text_encoder_3", "tokenizer_3"):
        without(name)(tmp_path / "sd3")
    seeds = derive_seeds(1, stream="train", step=0, prompts=1, group_size=2)
    assert len(build(tmp_path / "sd3").rollout([Prompt(text="cat")], 2, seeds=seeds).samples) == 2


def test_a_single_file_and_a_misspelt_tiny_model(saved: Path) -> None:
    file = saved / "transformer" / "diffusion_pytorch_model.safetensors"
    with pytest.raises(UsageError, match=r"is a file, and a pipeline is a folder.*from_single_file"):
        build(file)
    with pytest.raises(UsageError, match=r"no model 'tiny-sd' \(did you mean 'tiny-sd3'\?\)"):
        build("tiny-sd")


def test_a_picture_that_sd3_has_no_places_for() -> None:
    """The tiny one's embedding has 16 x 16 places of 4 x 4 pixels."""
    with pytest.raises(UsageError, match=r"places for at most 64 pixels a side, got \[96, 32\]"):
        build("tiny-sd3", size=(96, 32))


def test_nothing_counts_the_parts_where_nobody_looks(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build(saved)
    assert "pipeline components" not in capfd.readouterr().err
