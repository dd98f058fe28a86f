"""A run may begin with an adapter that peft wrote: it is the start, the reference, and what trains on."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from huggingface_hub import constants
from peft import IA3Config, LoraConfig, PeftModel
from safetensors.torch import load_file, save_file
from tiny_models import save_tiny_model, tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM

from grpokit import Ask, Prompt, Sample, Trainer, UsageError, objectives
from grpokit.sampling import derive_seeds
from grpokit_hf.models.adapters import quiet
from grpokit_lm.policy import CausalLMPolicy
from teaching import assert_teaches

TOKENS = torch.arange(12)[None]
PROMPTS = [Prompt(text=f"say {letter}") for letter in "abcdef"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "base")


def trained(base: Path, folder: Path, **settings: Any) -> Any:
    """Save an adapter that someone trained with plain peft; returns its model."""
    model = AutoModelForCausalLM.from_pretrained(base)
    given = {"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "up_proj"], "lora_dropout": 0.1} | settings
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(3)
        adapted: Any = peft.get_peft_model(model, LoraConfig(**given)).eval()
        for name, p in adapted.named_parameters():
            if "lora_" in name:
                p.data.add_(torch.randn(p.shape), alpha=0.2)
        adapted.save_pretrained(folder)
    return adapted


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS).logits  # type: ignore[no-any-return]


def vowels(samples: Sequence[Sample]) -> list[float]:
    return [sum(sample.output.count(vowel) for vowel in "aeiou0123456789") / 12 for sample in samples]


def trainer(base: Path, adapter: Path, **options: Any) -> tuple[Any, Trainer]:
    policy = CausalLMPolicy(base, max_new_tokens=8, lora={"adapter": str(adapter)}, **options)
    settings: dict[str, Any] = {"prompts_per_step": 2, "group_size": 4, "device": "cpu", "learning_rate": 0.01}
    return policy, Trainer(
        policy, [vowels], PROMPTS, objective=objectives.GRPO(kl_coef=0.1), progress=False, **settings
    )


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}, {"target_modules": r".*\.(q|v)_proj"}], ids=str)
def test_it_is_the_start_and_the_reference_and_it_trains(settings: dict[str, Any], base: Path, tmp_path: Path) -> None:
    start = logits(trained(base, tmp_path / "sft", **settings))
    policy, training = trainer(base, tmp_path / "sft")
    assert torch.allclose(logits(policy.model), start, rtol=0, atol=1e-4)
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    assert training.step().metrics["kl"] == 0.0
    assert training.step().metrics["kl"] > 0
    assert (logits(policy.model) - start).abs().max() > 1e-2
    with policy.reference():
        assert torch.allclose(logits(policy.path.model), start, rtol=0, atol=1e-4)
    policy.export(tmp_path / "out")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["lora_alpha"], config["base_model_name_or_path"]) == (12, str(base))
    with quiet():
        plain = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "out")
    assert torch.allclose(logits(plain), logits(policy.model), rtol=0, atol=1e-5)


def test_the_reference_copies_the_adapter_alone(base: Path, tmp_path: Path) -> None:
    trained(base, tmp_path)
    policy, _ = trainer(base, tmp_path)
    own = {id(p) for p in policy.model.parameters()}
    with policy._reference.model() as reference:
        copied = [name for name, p in reference.named_parameters() if id(p) not in own]
    assert len(copied) == 2 * 2 * 2  # A and B in two layers of two
    assert all("lora_" in name for name in copied)


@pytest.mark.parametrize("options", [{}, {"reference_ema": {"decay": 0.8}}], ids=str)
def test_a_resumed_run_has_the_same_kl_to_the_bit(options: dict[str, Any], base: Path, tmp_path: Path) -> None:
    trained(base, tmp_path / "sft")
    _, straight = trainer(base, tmp_path / "sft", **options)
    for _ in range(2):
        straight.step()
    straight.save(tmp_path / "two")
    _, resumed = trainer(base, tmp_path / "sft", **options)
    resumed.load(tmp_path / "two")
    kl = [training.step().metrics["kl"] for training in (straight, resumed)]
    assert kl[0] == kl[1] > 0


def test_weights_in_a_bin_file(base: Path, tmp_path: Path) -> None:
    start = logits(trained(base, tmp_path))
    weights = load_file(tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_model.safetensors").unlink()
    torch.save(weights, tmp_path / "adapter_model.bin")
    policy, _ = trainer(base, tmp_path)
    assert torch.allclose(logits(policy.model), start, rtol=0, atol=1e-4)


def test_an_adapter_of_the_hub_comes_from_the_cache(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "models--org--sft"
    start = logits(trained(base, repository / "snapshots" / "abc"))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (tmp_path / "models--org--empty" / "refs").mkdir(parents=True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    policy, _ = trainer(base, Path("org/sft"), local_files_only=True)
    assert torch.allclose(logits(policy.model), start, rtol=0, atol=1e-4)
    assert "lora: adapter: The adapter 'org/empty' is not a folder here and not in the Hug" in refused(
        base, "org/empty"
    )
    (repository / "refs" / "main").rename(repository / "refs" / "v2")
    assert "lora: adapter: The adapter 'org/sft' is not a folder here" in refused(base, "org/sft")
    assert "by `hf download org/sft --revision v3` and" in refused(base, "org/sft", revision="v3")
    policy = CausalLMPolicy(base, max_new_tokens=8, lora={"adapter": "org/sft", "revision": "v2"})
    assert torch.allclose(logits(policy.model), start, rtol=0, atol=1e-4)


def refused(base: Any, adapter: Any, **lora: Any) -> str:
    with pytest.raises(UsageError) as raised:
        CausalLMPolicy(base, max_new_tokens=8, lora={"adapter": adapter} | lora)
    return str(raised.value)


def test_weights_of_the_base_in_the_file_are_refused(base: Path, tmp_path: Path) -> None:
    """peft would put them into the base, and an export would leave them out."""
    trained(base, tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    weights = {name: x.clone() for name, x in load_file(path).items()}
    path.unlink()
    save_file(weights | {"base_model.model.model.embed_tokens.weight": torch.zeros(272, 32)}, path)
    assert "changes 'model.embed_tokens.weight'. Only adapters of linear" in refused(base, tmp_path)


@pytest.mark.filterwarnings("ignore:aLoRA is currently")
def test_variants_of_lora_are_refused(base: Path, tmp_path: Path) -> None:
    trained(base, tmp_path)
    path = tmp_path / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"alora_invocation_tokens": [1, 2]}))
    assert "is a variant of LoRA, ALora. Only LoRA and DoRA can be trained." in refused(base, tmp_path)
    path.write_text(json.dumps(config | {"init_lora_weights": "pissa"}))
    assert "was trained around changed base weights (init_lora_weights: 'pissa')" in refused(base, tmp_path)


def test_what_is_no_adapter_is_said_before_the_model_is_looked_for(base: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "no model"
    assert "'/nowhere' does not exist. Give a folder that peft's" in refused(nowhere, "/nowhere")
    assert "holds a whole model. Give a folder that peft's" in refused(nowhere, str(base))
    assert "has no adapter_config.json." in refused(nowhere, str(tmp_path))
    assert "lora: adapter: The adapter 'no/such' is not a folder here and not in the Hug" in refused(nowhere, "no/such")
    trained(base, tmp_path)
    both = refused(nowhere, str(tmp_path), r=8, alpha=4)
    assert "has its own r, alpha. Leave r, alpha out; on the command line, in place of a config's" in both
    assert f"'policy.lora={{adapter: {tmp_path}}}'" in both
    assert "revision is for the hub's repositories, and" in refused(nowhere, str(tmp_path), revision="v2")
    assert "revision is that of an adapter, and none is named" in refused(nowhere, None, revision="v2")
    IA3Config(target_modules=["q_proj"], feedforward_modules=[]).save_pretrained(tmp_path)
    assert re.search(
        r"is an adapter of type .*IA3\. Only LoRA and DoRA can be trained", refused(nowhere, str(tmp_path))
    )
    (tmp_path / "adapter_config.json").write_text("{")
    assert "adapter_config.json is damaged" in refused(nowhere, str(tmp_path))
    (tmp_path / "adapter_model.safetensors").unlink()
    assert "has no weights: expected adapter_model.safetensors" in refused(nowhere, str(tmp_path))


def test_an_adapter_of_another_model(base: Path, tmp_path: Path) -> None:
    own = save_tiny_model(tmp_path / "wide", "llama")
    trained(own, tmp_path / "sft")
    with pytest.warns(
        UserWarning, match=r"The adapter '.*sft' was trained on '.*wide', and the model here is '.*base'"
    ):
        CausalLMPolicy(base, max_new_tokens=8, lora={"adapter": tmp_path / "sft"})
    other: Any = tiny_model("llama", intermediate_size=48)
    other.save_pretrained(tmp_path / "other")
    tiny_tokenizer().save_pretrained(tmp_path / "other")
    message = refused(tmp_path / "other", str(tmp_path / "sft"))
    assert re.search(
        r"sft' does not fit the model \(it was trained on '.*wide'\): \d+ tensors of another shape, such as "
        r"'base_model\.model\.[\w.]+', which is \[\d+, \d+\] in its file, and \[\d+, \d+\] for this model\.$",
        message,
    )
    message = refused(save_tiny_model(tmp_path / "gpt2", "gpt2"), str(tmp_path / "sft"))
    assert re.search(r"does not fit the model \(it was trained on '.*wide'\): .*Target modules", message)
    weights = load_file(tmp_path / "sft" / "adapter_model.safetensors")
    (tmp_path / "sft" / "adapter_model.safetensors").write_bytes(b"0" * 64)
    assert "its weights cannot be read (" in refused(own, str(tmp_path / "sft"))
    (tmp_path / "sft" / "adapter_model.safetensors").unlink()
    pickled = tmp_path / "sft" / "adapter_model.bin"
    torch.save({**weights, "more": tmp_path}, pickled)
    whole = pickled.read_bytes()
    for content in (whole, whole[:-100], b"junk" * 30, b""):
        pickled.write_bytes(content)
        message = refused(own, str(tmp_path / "sft"))
        assert "cannot be read" in message
        assert "weights_only" not in message  # torch's advice is to load it unsafely
    weights.popitem()
    torch.save(weights, pickled)
    assert "1 tensor of one without a counterpart in the other, such as" in refused(own, str(tmp_path / "sft"))


@pytest.mark.filterwarnings("ignore:.*lora_bias=True")
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"target_modules": ["q_proj", "lm_head"]}, "lm_head"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "model.embed_tokens"),
        ({"modules_to_save": ["lm_head"]}, "lm_head"),
        ({"lora_bias": True}, "model.layers.0.self_attn.q_proj.lora_B.default.bias"),
    ],
    ids=str,
)
def test_an_adapter_of_more_than_linear_layers(settings: dict[str, Any], name: str, base: Path, tmp_path: Path) -> None:
    trained(base, tmp_path, **settings)
    assert f"changes '{name}" in refused(base, str(tmp_path))


@pytest.mark.parametrize("options", [{}, {"quantization": "4bit"}], ids=str)
def test_exported_adapters_are_teachers_around_one_base(options: dict[str, Any], base: Path, tmp_path: Path) -> None:
    if options:
        pytest.importorskip("bitsandbytes")

    def make(**settings: Any) -> CausalLMPolicy:
        return CausalLMPolicy(base, max_new_tokens=8, dtype="float32", device="cpu", **settings)

    assert_teaches(make, PROMPTS[:3], tmp_path, **options)


def test_both_paths_give_the_same_kl(base: Path, tmp_path: Path) -> None:
    """Of whole distributions, from a teacher's: the packed path by its hidden states, the plain one by all logits."""
    trained(base, tmp_path)
    found = []
    for fast in (True, False):
        policy = CausalLMPolicy(str(base), lora={"r": 2}, teachers={"one": tmp_path}, fast=fast, max_new_tokens=6)
        rollout = policy.rollout(PROMPTS, 2, seeds=derive_seeds(0, stream="train", step=0, prompts=6, group_size=2))
        steps = slice(1, rollout.mask.shape[1])
        with torch.no_grad(), policy.reference():
            theirs = policy.logprobs(rollout, steps, ask=Ask(entropy="no", distribution=True)).distribution
        found.append(policy.logprobs(rollout, steps, ask=Ask(entropy="no", against=theirs)).kl)
    packed, plain = found
    assert packed is not None
    assert float(packed.detach().max()) > 1e-3
    torch.testing.assert_close(packed, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("masked", [[0, 1], [2, 3]], ids=["of the first", "of the second"])
def test_a_teacher_whose_rows_decide_nothing_takes_nothing_from_the_others(
    masked: list[int], base: Path, tmp_path: Path
) -> None:
    """As where `mask_truncated` leaves all of its rows out; it then has no hidden states to give."""
    teachers = {"a": tmp_path / "a", "b": tmp_path / "b"}
    for folder in teachers.values():
        trained(base, folder)
    policy = CausalLMPolicy(str(base), lora={"r": 2}, teachers=teachers, max_new_tokens=6)
    prompts = [replace(prompt, meta={"teacher": name}) for prompt, name in zip(PROMPTS[:2], teachers, strict=True)]
    rollout = policy.rollout(prompts, 2, seeds=derive_seeds(0, stream="train", step=0, prompts=2, group_size=2))
    steps, ask = slice(0, rollout.mask.shape[1]), Ask(entropy="no", distribution=True)
    mask = rollout.mask.clone()
    mask[masked] = False
    with torch.no_grad(), policy.reference():
        every = policy.logprobs(rollout, steps, ask=ask).distribution
        some = policy.logprobs(replace(rollout, mask=mask), steps, ask=ask).distribution
    assert every is not None
    assert some is not None
    others = [row for row in range(4) if row not in masked]
    torch.testing.assert_close(some[others], every[others], rtol=1e-4, atol=1e-5)
    assert not some[masked].any()


def test_a_teacher_that_is_not_there_is_told_before_the_base_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^teachers: it: '.*nowhere' does not exist"):
        CausalLMPolicy("./no-model", lora={"r": 2}, teachers={"it": str(tmp_path / "nowhere")})
