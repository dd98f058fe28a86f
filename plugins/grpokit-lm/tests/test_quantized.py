"""Quantised weights are refused where they cannot work, and never trained."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import save_tiny_model, tiny_model, tiny_tokenizer
from torch import nn
from transformers import BitsAndBytesConfig

from grpokit import UsageError
from grpokit_lm import loading
from grpokit_lm.loading import load_model

BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "llama")


def quantised(folder: Path, **settings: Any) -> Path:
    """A folder whose configuration says that its weights are quantised."""
    path = save_tiny_model(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": settings}))
    return folder


def test_4bit_without_bitsandbytes(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs bitsandbytes, .* Run: pip install 'bitsandbytes>="):
        load_model(llama, quantization="4bit", trains_base=False)


def test_4bit_on_a_cpu(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(UsageError, match="needs a CUDA device: on a CPU, bitsandbytes packs weights into a form"):
        load_model(llama, quantization="4bit", trains_base=False, device="cpu")


@pytest.mark.parametrize(
    ("stored", "there", "options", "words"),
    [
        (
            BITS,
            True,
            {},
            r"The quantised model '.*' is for frozen weights: .* Add an adapter with lora: {r: 16}, or name",
        ),
        ({"load_in_8bit": True}, True, {}, "is for frozen weights"),
        (
            BITS,
            True,
            {"trains_base": False, "device": "cpu"},
            "needs a CUDA device: .* Name the model in full precision",
        ),
        (
            BITS,
            False,
            {"trains_base": False},
            r"'.*' needs bitsandbytes, which .* Run: pip install 'bitsandbytes>=",
        ),
        (
            BITS,
            True,
            {"trains_base": False, "quantization": "4bit"},
            "is quantised already. Leave quantization out, or",
        ),
        ({"quant_method": "gptq"}, True, {"trains_base": False, "quantization": "8bit"}, "is quantised already"),
    ],
)
def test_a_checkpoint_that_is_quantised_is_refused_before_its_weights_are_read(
    stored: Any, there: bool, options: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if there else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(loading, "_weights", lambda *given: pytest.fail("weights were read"))
    with pytest.raises(UsageError, match=words):
        load_model(quantised(tmp_path, **stored), **options)


@pytest.mark.parametrize("weights", [torch.uint8, torch.float8_e4m3fn, None])
def test_quantised_weights_are_not_trained(
    weights: torch.dtype | None, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = tiny_model("llama")
    if weights is None:
        model.quantization_method = "gptq"  # whose integers are no parameters
    else:
        layer = model.model.layers[1].mlp.up_proj
        layer.weight = nn.Parameter(layer.weight.detach().to(weights), requires_grad=False)
    words = r"quantised weights \(such as 'model.layers.1.mlp.up_proj.weight'\), which" if weights else "weights, which"
    with pytest.raises(UsageError, match=f"{words} cannot be trained. Add an adapter with lora"):
        load_model(model, tokenizer=tiny_tokenizer())
    monkeypatch.setattr(loading, "_weights", lambda *given: model)
    with pytest.raises(UsageError, match=f"{words} cannot be trained"):
        load_model(llama)
    assert load_model(model, tokenizer=tiny_tokenizer(), trains_base=False).model is model


def test_an_object_that_bitsandbytes_quantised_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    model = tiny_model("llama")
    model.config.quantization_config = BitsAndBytesConfig(load_in_4bit=True)
    with pytest.raises(UsageError, match="The quantised model 'LlamaForCausalLM' needs a CUDA device"):
        load_model(model, tokenizer=tiny_tokenizer(), trains_base=False)
