"""A skeleton is its model without values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, ODD_FAMILIES, save_tiny_model, tiny_model
from transformers import AutoConfig, AutoModelForCausalLM

from grpokit_hf.models.adapters import AdapterSettings, add_adapter
from grpokit_hf.models.skeleton import skeleton_of
from grpokit_hf.models.sources import Source, locate


@pytest.mark.parametrize("family", [*FAMILIES, *sorted(set(ODD_FAMILIES) - {"mamba"})])
def test_a_skeleton_has_the_layers_of_its_model(family: str, tmp_path: Path) -> None:
    model, random_state = tiny_model(family), torch.get_rng_state()
    folder = save_tiny_model(tmp_path, family)
    source = Source(**vars(locate(str(folder))), config=AutoConfig.from_pretrained(folder))
    skeleton: Any = skeleton_of(source, AutoModelForCausalLM)
    assert torch.equal(torch.get_rng_state(), random_state)
    shapes = [{name: p.shape for name, p in each.named_parameters()} for each in (skeleton, model)]
    assert shapes[0] == shapes[1]
    adapted = [add_adapter(each, AdapterSettings(r=2)) for each in (skeleton, model)]
    trained = [[name for name, p in each.named_parameters() if p.requires_grad] for each in adapted]
    assert trained[0] == trained[1]
