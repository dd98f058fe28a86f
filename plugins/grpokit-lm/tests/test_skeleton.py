"""What is wrong without a look at the weights is said before they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import save_tiny_model, tiny_model
from tiny_vision import save_tiny_vision_model
from transformers import AutoModelForCausalLM, GenerationConfig

from grpokit import UsageError
from grpokit_hf.models.skeleton import skeleton_of
from grpokit_lm import loading, sources
from grpokit_lm.policy import CausalLMPolicy


class WeightsAreReadError(Exception):
    """What reading the weights raises here."""


@pytest.fixture(autouse=True)
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise WeightsAreReadError

    monkeypatch.setattr(loading, "_weights", read)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora": {"targets": ["q_prj"]}}, r"lora: targets: no linear layer .*'q_prj' \(did you mean 'q_proj'\?\)"),
        ({"chat": True}, "chat: true needs a chat template"),
        ({"system": "Be brief."}, "A system prompt needs a chat template"),
        ({"chat_template": "nowhere.jinja"}, "The chat template nowhere.jinja does not exist"),
        ({"template_options": {"messages": 1}}, "template_options: 'messages' is not a variable"),
        ({"max_new_tokens": 128}, "max_new_tokens=128 leaves no room for a prompt"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens must be at least 1"),
        ({"stop_tokens": ["<end>"]}, "stop_tokens: the tokenizer has no token '<end>'"),
        ({"stop": [""]}, "stop must hold texts of at least one character, got ''"),
        ({"ignore_eos": True, "mask_truncated": True}, "nothing ends one here"),
        ({"train_vision": True}, "LlamaForCausalLM has no vision tower"),
        ({"reference_dtype": "bf17"}, r"reference_dtype must be one of .*, got 'bf17'"),
        ({"reference_dtype": "bf16", "reference_ema": {}}, "reference_dtype and reference_ema exclude each other"),
        ({"reference_offload": True, "lora": {"r": 2}}, "reference_offload are for full training"),
    ],
    ids=str,
)
def test_a_mistake_that_needs_no_weights(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        CausalLMPolicy(save_tiny_model(tmp_path, chat=False), **{"max_new_tokens": 8} | options)


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    tiny_model("llama", vocab_size=200, pad_token_id=0).config.save_pretrained(folder)
    with pytest.raises(UsageError, match=r"but the model .* knows 200 tokens: they do not belong together"):
        CausalLMPolicy(folder)


def test_settings_that_fit_lead_to_the_weights(tmp_path: Path) -> None:
    """One end token only the generation config knows."""
    folder = save_tiny_model(tmp_path / "text", eos=False)
    tiny_model("llama", eos_token_id=None).config.save_pretrained(folder)
    GenerationConfig(eos_token_id=7).save_pretrained(folder)
    with pytest.raises(WeightsAreReadError):
        CausalLMPolicy(folder, max_new_tokens=8, mask_truncated=True, lora={"r": 2, "dora": True})
    with pytest.raises(WeightsAreReadError):
        CausalLMPolicy(save_tiny_vision_model(tmp_path / "sees", "qwen3-vl"), max_new_tokens=8, train_vision=True)


def test_a_model_with_code_of_its_own_has_no_skeleton(tmp_path: Path) -> None:
    """transformers would run the code of another revision for it."""
    folder = save_tiny_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    code = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": code}))
    source = sources.find(folder)
    assert skeleton_of(source, AutoModelForCausalLM) is not None
    source.options["trust_remote_code"] = True
    assert skeleton_of(source, AutoModelForCausalLM) is None


@pytest.mark.parametrize("settings", ["[]", '{"early_stopping": "x"}'])
def test_generation_settings_that_cannot_be_read_are_left_to_the_loading(settings: str, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    (folder / "generation_config.json").write_text(settings)
    with pytest.raises(WeightsAreReadError):
        CausalLMPolicy(folder, max_new_tokens=8)
