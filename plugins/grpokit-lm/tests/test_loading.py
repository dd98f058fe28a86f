"""Models are loaded whole, and what cannot be loaded is said in one message."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import needs_gguf, save_gguf
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from tiny_models import EOS, FAMILIES, PAD, VIDEO, save_tiny_model, tiny_model, tiny_tokenizer
from tiny_vision import VISION_FAMILIES, save_tiny_vision_model
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from grpokit import Prompt, UsageError
from grpokit.rewards import downloads
from grpokit_hf.models import dtypes
from grpokit_hf.models.adapters import AdapterSettings, add_adapter
from grpokit_hf.models.weights import save_weights
from grpokit_lm import loading
from grpokit_lm.loading import LoadSettings, find_skeleton, load_model
from grpokit_lm.prompts import PromptEncoder, end_tokens

BART = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 300}
BERT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_each_family_gives_its_weights_back(family: str, tmp_path: Path) -> None:
    loaded = load_model(save_tiny_model(tmp_path, family), LoadSettings(device="cpu"))
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.equal(loaded.model(tokens).logits, tiny_model(family)(tokens).logits)
    assert loaded.tokenizer.pad_token_id == PAD
    assert not loaded.model.training


@needs_gguf
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_gguf_file_gives_its_weights_and_its_tokenizer_back(kind: str, tmp_path: Path) -> None:
    """Whole matrices come back to the bit; packed ones as numbers that can be trained, half a step off at most."""
    model, text = tiny_model("llama", hidden_size=32, head_dim=8), "Grüße: 12 + 3?"
    loaded = load_model(save_gguf(tmp_path / f"{kind}.gguf", model, kind=kind), LoadSettings(device="cpu"))
    for (name, own), (_, weight) in zip(loaded.model.named_parameters(), model.named_parameters(), strict=True):
        step = weight.detach().unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True) / 127
        off = (own - weight).detach().unflatten(-1, (-1, 32)).abs()
        assert own.dtype == torch.float32
        assert (off <= (0.57 * step if kind == "Q8_0" else 0)).all(), name
    messages = [{"role": "user", "content": text}]
    ours, theirs = loaded.tokenizer, tiny_tokenizer()
    assert ours(text).input_ids == theirs(text).input_ids
    assert ours.apply_chat_template(messages, tokenize=False) == theirs.apply_chat_template(messages, tokenize=False)
    assert end_tokens(loaded, loaded.model.generation_config, ()) == (EOS,)
    skeleton, _ = find_skeleton(tmp_path / f"{kind}.gguf")
    assert skeleton.num_parameters() == model.num_parameters()


def _without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == package else found(name, *a))


@needs_gguf
def test_a_gguf_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save_gguf(tmp_path / "tiny.gguf", tiny_model("llama"))
    whole, other = file.read_bytes(), tmp_path / "other.gguf"
    for content in (b"", b"version https://git-lfs.github.com/spec/v1\n", whole[:100], whole[:3000], whole[:-100]):
        other.write_bytes(content)
        with pytest.raises(UsageError, match=r"The GGUF file '.*other.gguf' is damaged \(.*\)\. Copy or download it"):
            load_model(other)
    other.write_bytes(whole.replace(b"llama", b"zorky"))
    with pytest.raises(UsageError, match="cannot be loaded: GGUF model with architecture zorky is not supported"):
        load_model(other)
    with pytest.raises(UsageError, match=r"There is no GGUF file '.*absent.gguf'. Give the path of one, or for one of"):
        load_model(tmp_path / "absent.gguf")
    with pytest.raises(UsageError, match=r"revision is for the hub's repositories, and '.*' is a file. Leave it out"):
        load_model(file, LoadSettings(revision="v2"))
    _without("gguf", monkeypatch)
    with pytest.raises(UsageError, match=r"the Python package gguf and .* Run: pip install 'grpokit-lm\[gguf\]'"):
        load_model(file)


def test_caps_of_attention_scores_are_not_left_out(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path, "gemma2")
    assert load_model(folder).model.config._attn_implementation == "eager"
    assert load_model(save_tiny_model(tmp_path / "llama")).model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_a_vision_model_comes_with_its_processor(family: str, tmp_path: Path) -> None:
    loaded = load_model(save_tiny_vision_model(tmp_path, family), LoadSettings(device="cpu"))
    assert loaded.processor is not None
    assert loaded.tokenizer.pad_token_id == PAD


def test_an_object_stays_the_object_that_it_is() -> None:
    model, tokenizer = tiny_model("gpt2"), tiny_tokenizer()
    loaded = load_model(model, LoadSettings(tokenizer=tokenizer))
    assert loaded.model is model
    assert loaded.tokenizer is tokenizer
    assert loaded.name == "GPT2LMHeadModel"


def test_an_object_that_cannot_be() -> None:
    used = tiny_model("llama")
    add_adapter(used, AdapterSettings(r=2))
    with pytest.raises(UsageError, match=r"has an adapter in it, maybe of an earlier policy. Load the model again"):
        load_model(used, LoadSettings(tokenizer=tiny_tokenizer()))
    with pytest.raises(UsageError, match="is no causal language model: it is LlamaModel"):
        load_model(tiny_model("llama").get_decoder(), LoadSettings(tokenizer=tiny_tokenizer()))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "A model object needs its tokenizer"),
        ({"tokenizer": 3}, "tokenizer must be a name, or a tokenizer or processor of transformers, got an int"),
        ({"tokenizer": "/nowhere/own"}, "The tokenizer's folder '/nowhere/own' does not exist. Give a folder"),
        ({"dtype": "bfloat16"}, "dtype is for models that are loaded by name; a model object is used as it is. Leave"),
        ({"quantization": "8bit", "lora": {}}, "quantization is for models that are loaded by name"),
        ({"revision": "v2"}, "revision is for models that are loaded by name"),
        ({"local_files_only": True, "tokenizer": tiny_tokenizer()}, "local_files_only is for what is loaded by name"),
        ({"trust_remote_code": True, "tokenizer": tiny_tokenizer()}, "both model and tokenizer are objects. Leave it"),
        ({"device": "auto"}, r"device must be 'cpu' or 'cuda', got 'auto'\. Left out, it is the GPU if there is one"),
        ({"device": "cuda"}, "device is 'cuda', but torch finds no CUDA device"),
        ({"dtype": "float23"}, r"dtype must be 'auto', .*, got 'float23' \(did you mean 'float32'\?\)"),
        ({"quantization": "4bit"}, "quantised weights cannot be trained. Add an adapter"),
        ({"quantization": "2bit"}, "quantization must be '4bit' or '8bit', or None, got '2bit'"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "8bit" in settings.values())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(UsageError, match=words):
        load_model(tiny_model("llama"), LoadSettings(**settings))


def test_a_tokenizer_by_name(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read with options of its own: the model's folder needs no hub, its tokenizer does."""
    read: list[Any] = []
    monkeypatch.setattr(loading, "_read_tokenizer", lambda files, sees: read.append(files) or tiny_tokenizer())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(downloads, "unreachable", lambda endpoint: "")
    tiny_model("llama").save_pretrained(tmp_path)  # without a tokenizer
    load_model(tmp_path, LoadSettings(tokenizer="org/name", trust_remote_code=True))
    load_model(tiny_model("llama"), LoadSettings(tokenizer="org/name", local_files_only=True))
    load_model(tiny_model("llama"), LoadSettings(tokenizer=llama))
    assert [(files.place, files.options["local_files_only"], files.options["trust_remote_code"]) for files in read] == [
        ("org/name", False, True),
        ("org/name", True, False),
        (str(llama), True, False),
    ]


def test_an_object_is_moved_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    model, moves = tiny_model("llama"), []
    monkeypatch.setattr(model, "to", moves.append)
    for device in (None, "cpu", "cuda"):
        load_model(model, LoadSettings(tokenizer=tiny_tokenizer(), device=device))
    assert moves == ["cuda"]

    def refuse(device: str) -> None:
        raise ValueError("`.to` is not supported for `4-bit` models")

    monkeypatch.setattr(model, "to", refuse)
    with pytest.raises(UsageError, match=r"'LlamaForCausalLM' cannot be moved to device 'cuda': `\.to` is not support"):
        load_model(model, LoadSettings(tokenizer=tiny_tokenizer(), device="cuda"))


@pytest.mark.parametrize(
    ("there", "device", "options", "place", "dtype"),
    [
        (True, None, {}, {"": "cuda"}, torch.bfloat16),
        (True, None, {"quantization": "4bit"}, {"": "cuda"}, torch.bfloat16),
        (True, "cuda", {}, {"": "cuda"}, torch.bfloat16),
        (True, "cpu", {}, None, torch.float32),
        (False, None, {}, None, torch.float32),
    ],
)
def test_weights_go_to_the_gpu_if_there_is_one(
    there: bool,
    device: str | None,
    options: dict[str, Any],
    place: object,
    dtype: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint in bfloat16 under an adapter, and a CPU that would emulate it."""
    tiny_model("llama").bfloat16().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(dtypes, "cpu_has_bfloat16", lambda: False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(loading, "_weights", lambda source, kind, given: asked.update(given) or tiny_model("llama"))
    load_model(tmp_path, LoadSettings(lora={}, device=device, **options))
    assert (asked.get("device_map"), asked["dtype"]) == (place, dtype)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no weights: expected model.safetensors"),
        ("tokenizer*", "has no tokenizer: expected tokenizer.json"),
    ],
)
def test_a_folder_that_lacks_a_file(missing: str, words: str, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    for file in folder.glob(missing):
        file.unlink()
    with pytest.raises(UsageError, match=f"The model folder '{folder}' {words}"):
        load_model(folder)


def _config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def _as_bin(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)


def _half_a_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": ')


def _as_objects(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": folder}, folder / "pytorch_model.bin")


def _in_shards(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    tiny_model("llama").save_pretrained(folder, max_shard_size="30KB")
    (folder / "model-00002-of-00002.safetensors").unlink()


def _cut(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content or (folder / "model.safetensors").read_bytes()[:5000])


def _as_gguf(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-q4.gguf")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            _in_shards,
            "is incomplete: model.safetensors.index.json names 2 files, and 'model-00002-of-00002.safetensors'",
        ),
        (partial(_cut, content=b""), r"model.safetensors' is damaged \(.*\). Copy or download it again"),
        (partial(_cut, content=b"version https://git-lfs.github.com/spec/v1\n"), "is a pointer of Git LFS in place of"),
        (partial(_as_bin, content=b"junk" * 30), "cannot be read: a .bin file is damaged, or holds other objects"),
        (_as_objects, "cannot be read: a .bin file is damaged, or holds other objects"),
        (_half_a_generation_config, r"generation_config.json' is damaged \(.*\). Copy or download it again"),
        (_as_gguf, "holds weights in GGUF format. Name the file itself, such as model: .*/model/model-q4.gguf"),
        (partial(_config, intermediate_size=64), r"the shapes of 6 tensors differ, such as .*, \[16, 32\] in the fi"),
        (partial(_config, hidden_act="zork"), "cannot be built: its config.json asks for 'zork', which transformers"),
        (partial(_config, hidden_size="big"), "cannot be loaded: Validation error for field 'hidden_size'"),
        (
            partial(_config, model_type="zork"),
            "is of type 'zork', which transformers .* does not know. A newer one may",
        ),
    ],
)
def test_a_folder_that_is_damaged(damage: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    damage(folder)
    with pytest.raises(UsageError, match=words):
        load_model(folder)


def test_an_index_that_nothing_is_read_by(tmp_path: Path) -> None:
    """As of `hf download --exclude '*.bin'`: transformers reads the other weights."""
    folder = save_tiny_model(tmp_path)
    (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "pytorch_model-00001-of-00002.bin"}}')
    load_model(folder)


def test_a_folder_has_no_revisions(llama: Path) -> None:
    with pytest.raises(UsageError, match=r"revision is for the hub's repositories, and '.*' is a folder. Leave it out"):
        load_model(llama, LoadSettings(revision="v2"))
    with pytest.raises(UsageError, match="model is empty: expected a hub id like 'org/name', or a folder"):
        load_model("")


def test_a_folder_that_is_not_there_is_a_file_or_holds_an_adapter(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere' does not exist"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"is a link. A model of the hub is named by its id: 'Qwen/Qwen3-0.6B'"):
        load_model("https://huggingface.co/Qwen/Qwen3-0.6B/tree/main")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file' is a file"):
        load_model(tmp_path / "file")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    with pytest.raises(
        UsageError, match=r"not a model. Name the adapter's base model \('org/base'\); .* add lora: {adapter: /"
    ):
        load_model(tmp_path)


def test_an_adapter_beside_the_weights(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    save_weights(add_adapter(tiny_model("llama"), AdapterSettings(r=2)), folder)
    with pytest.raises(UsageError, match=r"has an adapter beside its weights .* name that folder with lora: {adapter"):
        load_model(folder)


def test_weights_that_are_incomplete(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"incomplete: they lack 1 tensor, such as 'model.layers.1.mlp.up_proj"):
        load_model(folder)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (BertConfig(**BERT), BertForMaskedLM),
        (BertConfig(**BERT), BertLMHeadModel),  # it could, but is configured to look at what comes later
        (BartConfig(**BART), BartForConditionalGeneration),
        (T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=1, vocab_size=300), T5ForConditionalGeneration),
    ],
)
def test_a_model_that_writes_no_text(config: Any, kind: type[Any], tmp_path: Path) -> None:
    kind(config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=f"is no causal language model: it is {kind.__name__}"):
        load_model(tmp_path)
    with pytest.raises(UsageError, match=f"is no causal language model: it is {kind.__name__}"):
        load_model(kind(config), LoadSettings(tokenizer=tiny_tokenizer()))


def test_a_model_whose_configuration_calls_it_no_decoder_may_still_be_one() -> None:
    config = GPTNeoXConfig(vocab_size=272, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    assert config.is_decoder is False
    load_model(GPTNeoXForCausalLM(config), LoadSettings(tokenizer=tiny_tokenizer()))


def test_an_encoder_with_a_decoder() -> None:
    model = tiny_model("llama")
    model.config.is_encoder_decoder = True
    with pytest.raises(UsageError, match="is no causal language model: it is LlamaForCausalLM"):
        load_model(model, LoadSettings(tokenizer=tiny_tokenizer()))


def test_a_tokenizer_of_another_model() -> None:
    with pytest.raises(UsageError, match=r"token ids up to 255, but the model 'LlamaForCausalLM' knows 200 tokens"):
        load_model(tiny_model("llama", vocab_size=200, pad_token_id=0), LoadSettings(tokenizer=tiny_tokenizer()))


def test_an_added_token_beyond_the_model() -> None:
    """Gemma 3 has one for pictures, and its text models have no embedding of it: other prompts are read."""
    loaded = load_model(tiny_model("llama", vocab_size=VIDEO), LoadSettings(tokenizer=tiny_tokenizer()))
    encoder = PromptEncoder(loaded=loaded, max_new_tokens=8)
    encoder.check([Prompt(text="<image>")])
    for read in (encoder.encode, lambda prompt: encoder.check([prompt])):
        with pytest.raises(UsageError, match=r"has the token '<video>' with the id 265, but .* knows 265 tokens"):
            read(Prompt(text="a<video>"))
    assert end_tokens(loaded, None) == (EOS,)
    loaded.tokenizer.eos_token = "<video>"
    with pytest.raises(UsageError, match=r"end token '<video>' has the id 265, but the model .* can never write it"):
        end_tokens(loaded, None)


def test_a_tokenizer_that_knows_no_added_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """mistral-common's in transformers is one; without added tokens there is nothing to ask for."""
    tokenizer = tiny_tokenizer()
    monkeypatch.delattr(type(tokenizer), "get_added_vocab", raising=False)
    monkeypatch.setattr(type(tokenizer), "get_added_vocab", property(lambda _: 1 / 0), raising=False)
    assert load_model(tiny_model("llama"), LoadSettings(tokenizer=tokenizer)).tokenizer is tokenizer


@pytest.mark.parametrize(
    ("dtype", "units", "trains_base", "expected"),
    [
        ("auto", True, True, torch.float32),
        ("auto", True, False, torch.bfloat16),
        ("auto", False, False, torch.float32),
        ("bf16", True, True, torch.bfloat16),
        ("float32", False, False, torch.float32),
    ],
)
def test_dtype(
    dtype: str, units: bool, trains_base: bool, expected: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_model("llama").bfloat16().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(dtypes, "cpu_has_bfloat16", lambda: units)
    assert (
        load_model(tmp_path, LoadSettings(dtype=dtype, lora=None if trains_base else {}, device="cpu")).model.dtype
        == expected
    )


def test_bfloat16_is_not_emulated(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "cpu_has_bfloat16", lambda: False)
    with pytest.warns(UserWarning, match="dtype 'bfloat16' on a CPU without bfloat16 units .* float32 is used"):
        loaded = load_model(llama, LoadSettings(dtype="bfloat16", device="cpu"))
    assert loaded.model.dtype == torch.float32
