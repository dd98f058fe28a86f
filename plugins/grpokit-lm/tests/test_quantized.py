"""Quantised weights are refused where they cannot work, never trained, and give a row the same beside any other."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import save_tiny_model, tiny_model, tiny_tokenizer
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from grpokit import UsageError
from grpokit_lm import loading
from grpokit_lm.loading import LoadSettings, load_model

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
    with pytest.raises(UsageError, match=r"needs bitsandbytes 0.49 or later, .* Run: pip install 'bitsandbytes>="):
        load_model(llama, LoadSettings(quantization="4bit", lora={}))


@pytest.mark.parametrize(("quantization", "away"), [("4bit", (0.1, 1.0)), ("8bit", (1e-4, 0.1))])
def test_a_row_and_its_gradient_do_not_depend_on_the_rows_beside_it(
    quantization: Any, away: tuple[float, float], llama: Path
) -> None:
    """Without gradient and with it, alone and in a batch. `away` is the distance from full precision, as a share."""
    pytest.importorskip("bitsandbytes")
    full = load_model(llama, LoadSettings(lora={}, device="cpu", dtype="float32")).model
    model = load_model(llama, LoadSettings(quantization=quantization, lora={}, device="cpu", dtype="float32")).model
    ids = torch.arange(3, 40).repeat(3, 1) + torch.tensor([[0], [1], [100]])
    with torch.no_grad():
        rows = model(ids).logits
        assert torch.equal(rows, torch.cat([model(row[None]).logits for row in ids]))
        exact = full(ids).logits
    assert away[0] < float((rows - exact).norm() / exact.norm()) < away[1]
    x = model.get_input_embeddings()(ids).detach().requires_grad_()
    again = model(inputs_embeds=x).logits
    assert torch.equal(again, rows)
    again.square().sum().backward()
    assert x.grad is not None
    assert bool(x.grad.any())


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
            False,
            {"lora": {}},
            r"'.*' needs bitsandbytes 0.49 or later, which .* Run: pip install 'bitsandbytes>=",
        ),
        (
            BITS,
            True,
            {"lora": {}, "quantization": "4bit"},
            "is quantised already. Leave quantization out, or",
        ),
        ({"quant_method": "gptq"}, True, {"lora": {}, "quantization": "8bit"}, "is quantised already"),
    ],
)
def test_a_checkpoint_that_is_quantised_is_refused_before_its_weights_are_read(
    stored: Any, there: bool, options: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if there else None)
    monkeypatch.setattr(loading, "_weights", lambda *given: pytest.fail("weights were read"))
    with pytest.raises(UsageError, match=words):
        load_model(quantised(tmp_path, **stored), LoadSettings(**options))


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
        load_model(model, LoadSettings(tokenizer=tiny_tokenizer()))
    monkeypatch.setattr(loading, "_weights", lambda *given: model)
    with pytest.raises(UsageError, match=f"{words} cannot be trained"):
        load_model(llama)
    assert load_model(model, LoadSettings(tokenizer=tiny_tokenizer(), lora={})).model is model


def test_an_object_that_bitsandbytes_quantised(llama: Path) -> None:
    pytest.importorskip("bitsandbytes")
    config: Any = BitsAndBytesConfig
    model: Any = AutoModelForCausalLM.from_pretrained(llama, quantization_config=config(load_in_8bit=True))
    loaded = load_model(model, LoadSettings(tokenizer=tiny_tokenizer(), lora={}))
    assert {type(layer.mlp.up_proj).__name__ for layer in loaded.model.model.layers} == {"Linear8bit"}
    with pytest.raises(UsageError, match=r"The quantised model '.*' is for frozen weights"):
        load_model(model, LoadSettings(tokenizer=tiny_tokenizer()))
