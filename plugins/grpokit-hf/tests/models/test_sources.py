"""Weights that cannot be right are refused before they are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from grpokit import UsageError
from grpokit_hf.models.sources import check_weights

NAMES = ["model", "diffusion_pytorch_model"]  # of transformers, and of diffusers in the folders of a pipeline


@pytest.mark.parametrize("name", NAMES)
def test_a_component_of_a_pipeline_with_torn_or_missing_weights(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "component"
    folder.mkdir()
    parts = [folder / f"{name}-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for part in parts:
        save_file({part.stem: torch.ones(4)}, part)
    weight_map = {part.stem: part.name for part in parts}
    (folder / f"{name}.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    check_weights(folder)
    whole = parts[1].read_bytes()
    parts[1].write_bytes(whole[:-1])
    with pytest.raises(UsageError, match=rf"'.*component/{parts[1].name}' is damaged \(.*\)\. Copy or download"):
        check_weights(folder)
    parts[1].write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UsageError, match=r"is a pointer of Git LFS in place of the weights\. Fetch them with"):
        check_weights(folder)
    parts[1].unlink()
    with pytest.raises(
        UsageError, match=rf"component' is incomplete: {name}\..* names 2 files, and '{parts[1].name}' is not there"
    ):
        check_weights(folder)
