"""Checkpoints and exports are loaded by plain transformers and plain peft."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import needs_gguf, save_gguf
from peft import PeftModel
from safetensors.torch import load_file
from tiny_models import FAMILIES, adapted, change, logits, save_tiny_model, tiny_model, tiny_tokenizer
from tiny_vision import VISION_FAMILIES, save_tiny_vision_model
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from grpokit import UsageError
from grpokit_hf.models import weights
from grpokit_hf.models.adapters import AdapterSettings, add_adapter
from grpokit_hf.models.weights import save_weights
from grpokit_lm.loading import Loaded, LoadSettings, load_model
from grpokit_lm.saving import export


def by_card(usage: str, folder: Path, base: str = "") -> dict[str, Any]:
    """What the code of a model card defines."""
    defined: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*checkpointing.* is deprecated")
        exec(usage.replace("FOLDER", str(folder)).replace("BASE_MODEL", base), defined)  # noqa: S102
    return defined


def trained(folder: Path, family: str, adapter: str = "") -> tuple[Loaded, Any]:
    """A model that is not what the folder holds any more."""
    loaded = load_model(save_tiny_model(folder, family), LoadSettings(lora={} if adapter else None, device="cpu"))
    model: Any = adapted(loaded.model, adapter) if adapter else loaded.model
    change(model)
    return loaded, model


def read(folder: Path, family: str, **options: Any) -> Any:
    """A model by plain transformers, with the attention of the tiny one: 5.17 would leave Gemma 2's caps out."""
    attention = FAMILIES[family][1].get("attn_implementation")
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_transformers_reads_a_checkpoint_and_an_export(family: str, tmp_path: Path) -> None:
    loaded, model = trained(tmp_path / "base", family)
    for folder, write in ((tmp_path / "saved", save_weights), (tmp_path / "out", lambda m, f: export(m, loaded, f))):
        folder.mkdir()
        write(model, folder)
        again, report = read(folder, family, output_loading_info=True)
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]
        assert again.dtype == torch.float32
        assert torch.equal(logits(again), logits(model))
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode("hi") == loaded.tokenizer.encode("hi")
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == loaded.tokenizer.eos_token_id


@pytest.mark.parametrize("dora", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_peft_reads_an_adapter_and_a_merge_is_one_model(family: str, dora: bool, tmp_path: Path) -> None:
    loaded = load_model(save_tiny_model(tmp_path / "base", family), LoadSettings(lora={}, device="cpu"))
    model = add_adapter(loaded.model, AdapterSettings(r=2, dora=dora))
    change(model)
    expected = logits(model)
    for merge in (False, True):
        (tmp_path / str(merge)).mkdir()
        facts = export(model, loaded, tmp_path / str(merge), merge=merge)
        assert facts["base_model"] == str(tmp_path / "base")
        assert facts["library_name"] == ("transformers" if merge else "peft")
    assert torch.equal(logits(model), expected)  # it has not been changed
    base = read(tmp_path / "base", family)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*checkpointing.* is deprecated")
        plain = PeftModel.from_pretrained(base, tmp_path / "False")
    assert torch.equal(logits(plain), expected)
    merged = read(tmp_path / "True", family)
    torch.testing.assert_close(logits(merged), expected, rtol=1e-4, atol=1e-4)
    assert not any("lora" in name for name, _ in merged.named_parameters())
    assert AutoTokenizer.from_pretrained(tmp_path / "False").chat_template


def test_a_quantised_base_in_a_folder_is_loaded_again_for_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, model = trained(tmp_path / "base", "llama", "lora")
    expected = logits(model)
    loaded.model.quantization_method = "bitsandbytes"  # type: ignore[assignment]  # as its loader marks a model
    (tmp_path / "out").mkdir()
    read_out, calls = weights.get_peft_model_state_dict, []
    monkeypatch.setattr(
        weights, "get_peft_model_state_dict", lambda *args, **key: calls.append(1) or read_out(*args, **key)
    )
    export(model, loaded, tmp_path / "out", merge=True)
    assert len(calls) == 2  # of the trained adapter, and of the one around the other base; not for each tensor
    assert {x.dtype for x in load_file(tmp_path / "out/model.safetensors").values()} == {torch.bfloat16}
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    base = read(tmp_path / "base", "llama")
    assert (logits(merged) - expected).norm() < 0.05 * expected.norm()
    assert (logits(base) - expected).norm() > 0.2 * expected.norm()


def test_a_base_that_is_quantised_on_disk_is_not_merged(tmp_path: Path) -> None:
    loaded, model = trained(tmp_path / "base", "llama", "lora")
    loaded.model.quantization_method = "bitsandbytes"  # type: ignore[assignment]
    path = tmp_path / "base/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"load_in_4bit": True}}))
    (tmp_path / "out").mkdir()
    with pytest.raises(
        UsageError, match=r"is quantised on disk\. Leave out --merge; peft's merge_and_unload can then add"
    ):
        export(model, loaded, tmp_path / "out", merge=True)


@pytest.mark.parametrize("family", VISION_FAMILIES)
@pytest.mark.parametrize("adapter", ["", "lora"])
def test_the_card_of_a_vision_model_loads_it_with_its_processor(family: str, adapter: str, tmp_path: Path) -> None:
    loaded = load_model(
        save_tiny_vision_model(tmp_path / "base", family), LoadSettings(lora={} if adapter else None, device="cpu")
    )
    model: Any = adapted(loaded.model, adapter) if adapter else loaded.model
    change(model)
    (tmp_path / "out").mkdir()
    card = by_card(export(model, loaded, tmp_path / "out")["usage"], tmp_path / "out", loaded.name)
    assert torch.equal(logits(card["model"]), logits(model))
    assert type(card["processor"]) is type(loaded.processor)


@pytest.mark.parametrize(("adapter", "merge"), [("", False), ("lora", False), ("lora", True)])
def test_a_generation_config_is_written_as_it_was_published(adapter: str, merge: bool, tmp_path: Path) -> None:
    """With a temperature and no `do_sample`, as some models have it: transformers refuses to save that."""
    published = {"eos_token_id": 7, "temperature": 0.9, "top_p": 0.6}
    loaded, model = trained(tmp_path / "base", "llama", adapter)
    loaded.model.generation_config = GenerationConfig(**published)
    (tmp_path / "out").mkdir()
    (tmp_path / "saved").mkdir()
    export(model, loaded, tmp_path / "out", merge=merge)
    save_weights(model, tmp_path / "saved")
    for folder in ("out",) if adapter else ("out", "saved"):
        again = json.loads((tmp_path / folder / "generation_config.json").read_text())
        assert {name: value for name, value in again.items() if name != "transformers_version"} == published
    assert loaded.model.generation_config.temperature == 0.9


@needs_gguf
def test_an_adapter_of_a_gguf_file(tmp_path: Path) -> None:
    """Its card names the file, and what is merged is a model like any other."""
    loaded = load_model(save_gguf(tmp_path / "tiny.gguf", tiny_model("llama")), LoadSettings(lora={}, device="cpu"))
    model = adapted(loaded.model, "lora")
    change(model)
    for merge in (False, True):
        (tmp_path / str(merge)).mkdir()
        facts = export(model, loaded, tmp_path / str(merge), merge=merge)
        card = by_card(facts["usage"], tmp_path / str(merge), loaded.name)
        assert torch.allclose(logits(card["model"]), logits(model), atol=1e-5)
        assert type(card["tokenizer"]) is type(loaded.tokenizer)


@pytest.mark.parametrize("quantization", ["4bit", "8bit"])
def test_the_card_of_an_adapter_quantises_its_base(quantization: Any, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    folder = save_tiny_model(tmp_path / "base", "llama")
    loaded = load_model(folder, LoadSettings(quantization=quantization, lora={}, device="cpu"))
    model = adapted(loaded.model, "lora")
    change(model)
    (tmp_path / "out").mkdir()
    card = by_card(export(model, loaded, tmp_path / "out")["usage"], tmp_path / "out", loaded.name)
    here, there = (each.config.quantization_config.to_dict() for each in (loaded.model, card["model"]))
    assert here == there


def test_a_merge_without_adapter(tmp_path: Path) -> None:
    loaded = load_model(tiny_model("llama"), LoadSettings(tokenizer=tiny_tokenizer()))
    with pytest.raises(UsageError, match="There is no adapter to merge"):
        export(loaded.model, loaded, tmp_path, merge=True)
    assert not list(tmp_path.iterdir())


def test_the_code_of_a_card_finds_a_base_in_a_package(tmp_path: Path) -> None:
    loaded = load_model("grpokit_lm:models/arithmetic", LoadSettings(dtype="float32", lora={}, device="cpu"))
    model = adapted(loaded.model, "lora")
    change(model)
    usage = export(model, loaded, tmp_path)["usage"]
    assert 'from_pretrained(files("grpokit_lm") / "models/arithmetic")' in usage
    again = by_card(usage, tmp_path)["model"]
    assert torch.allclose(logits(again.float()), logits(model), atol=1e-3)  # its base is in half precision
    assert "importlib" not in export(model, loaded, tmp_path, merge=True)["usage"]
