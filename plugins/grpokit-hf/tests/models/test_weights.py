"""Checkpoints come back to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, ROWS, adapted, change, logits, tiny_model

from grpokit import CheckpointError
from grpokit_hf.models.adapters import AdapterSettings, add_adapter
from grpokit_hf.models.weights import load_weights, save_weights, tensors_of


@pytest.mark.parametrize("adapter", ["", "lora", "dora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_comes_back_to_the_bit(family: str, adapter: str, tmp_path: Path) -> None:
    model: Any = tiny_model(family)
    model = adapted(model, adapter) if adapter else model
    change(model)
    (tmp_path / "saved").mkdir()
    save_weights(model, tmp_path / "saved")
    names = {file.name for file in (tmp_path / "saved").iterdir()}
    assert names == (
        {"adapter_model.safetensors", "adapter_config.json"}
        if adapter
        else {"model.safetensors", "config.json", "generation_config.json"}
    )
    other: Any = adapted(tiny_model(family), adapter, seed=1) if adapter else tiny_model(family, seed=1)
    assert not torch.equal(logits(other), logits(model))
    load_weights(other, tensors_of(model))
    assert torch.equal(logits(other), logits(model))


def test_a_checkpoint_says_what_it_holds(tmp_path: Path) -> None:
    model: Any = tiny_model("llama").bfloat16()
    assert model.config.architectures is None
    for dtype in ("bfloat16", "float32"):
        save_weights(model.to(getattr(torch, dtype)), tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], dtype)


def test_weights_of_another_model() -> None:
    whole = tensors_of(tiny_model("llama"))
    with pytest.raises(
        CheckpointError, match=r"it differs in 1 tensor, such as 'lm_head.weight', which is \[272, 16\] there"
    ):
        load_weights(tiny_model("llama", tie_word_embeddings=True), whole)
    adapted = add_adapter(tiny_model("llama"), AdapterSettings(r=2))
    with pytest.raises(CheckpointError, match=r"holds whole weights, without an adapter\. Use the same lora"):
        load_weights(adapted, whole)
    with pytest.raises(CheckpointError, match=r"holds an adapter\. Use the same lora"):
        load_weights(tiny_model("llama"), tensors_of(adapted))
    with pytest.raises(CheckpointError, match=r"which is \[2, 32\] there and \[4, 32\] here"):
        load_weights(add_adapter(tiny_model("llama"), AdapterSettings(r=4)), tensors_of(adapted))
    assert ROWS == 272
