"""The plan of hf-lm, against docs/memory.md, and against what a small model takes in earnest."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from test_memory import ADAPTER, GROUP, HEAD, HIDDEN, KEYS, MLP, kept
from tiny_models import save_tiny_model, tiny_model, tiny_tokenizer

from grpokit import UsageError
from grpokit_hf.plan.counting import sizes_of
from grpokit_hf.tokens import packed_attention
from grpokit_lm import plan as planning
from grpokit_lm.policy import CausalLMPolicy
from grpokit_plan import Job, Needs

GIB = 2**30
DEFAULTS = {p.name: p.default for p in inspect.signature(CausalLMPolicy).parameters.values()}
JOB = Job(prompts=4, group_size=8, micro_batch_size=8, rollout_rows=32, prompt_tokens=200)
NEW = 32


def plan(job: Job = JOB, **parameters: Any) -> Needs:
    return planning.plan({**DEFAULTS, **parameters}, job)


def memory(needs: Needs, name: str, moment: str = "train") -> float:
    return sum(part.bytes for part in needs.parts if part.name == name and moment in part.moments)


@pytest.fixture
def qwen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen2.5-1.5B, by the sizes in docs/memory.md."""
    config = transformers.Qwen2Config(
        vocab_size=151_936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )

    def find_skeleton(model: str, settings: Any) -> tuple[Any, torch.dtype]:
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(config), torch.bfloat16

    monkeypatch.setattr(planning, "find_skeleton", find_skeleton)


QLORA = {"lora": {"r": 16}, "quantization": "4bit"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (
            {"lora": {"r": 16}},
            {"weights": 2.9, "adapter": 0.07, "optimizer": 0.14, "gradients": 0.07, "activations": 12.4, "logits": 1.7},
        ),
        ({"lora": {"r": 16}, "gradient_checkpointing": True}, {"activations": 0.8}),
        (
            {},
            {
                "weights": 5.8,
                "optimizer": 11.5,
                "gradients": 5.8,
                "16-bit copies": 2.9,
                "reference": 5.8,
                "activations": 13.8,
                "logits": 2.6,
            },
        ),
        ({"gradient_checkpointing": True, "reference_dtype": "bfloat16"}, {"activations": 1.2, "reference": 2.9}),
        ({"reference_offload": True}, {"reference": 0}),
        (QLORA, {"weights": 0.516 * 1.22 + 2 * 0.2174}),  # 1.31 billion in layers, 0.23 billion in the table of tokens
    ],
)
@pytest.mark.usefixtures("qwen")
def test_the_example_of_the_page_on_memory(parameters: dict[str, Any], expected: dict[str, float]) -> None:
    job = Job(**{**vars(JOB), "mixed_precision": "bf16", "reference": True})
    needs = plan(job, model="qwen", max_new_tokens=512, **parameters)
    for name, gib in expected.items():
        assert memory(needs, name) / GIB == pytest.approx(gib, abs=0.051 if gib > 0.5 else 0.006), name
    drawing = 0 if parameters == QLORA else 2.4 if "lora" in parameters else 2.9
    assert memory(needs, "weights for drawing", "rollout") / GIB == pytest.approx(drawing, abs=0.05)
    assert memory(needs, "cache", "rollout") == 28 * 1024 * (4 * 200 + 32 * 512)


@pytest.mark.usefixtures("qwen")
def test_training_takes_6_flop_per_weight_and_token_and_4_with_lora() -> None:
    tokens, layers = 32 * 512 + 4 * 200, 1.31e9
    full, adapted = (
        next(work.flop * work.times for work in plan(max_new_tokens=512, lora=lora).works if work.phase == "train")
        for lora in (None, {"r": 1})
    )
    assert (full - adapted) / (2 * layers * tokens) == pytest.approx(1, abs=0.2)  # and the output layer's
    assert adapted / (4 * 1.54e9 * tokens) == pytest.approx(1, abs=0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model on disk, with the sizes of `test_memory`."""
    place = tmp_path_factory.mktemp("model")
    model = tiny_model(
        "llama",
        hidden_size=HIDDEN,
        intermediate_size=MLP,
        num_attention_heads=HIDDEN // HEAD,
        num_key_value_heads=KEYS // HEAD,
        head_dim=HEAD,
    )
    model.save_pretrained(place)
    tiny_tokenizer().save_pretrained(place)
    return place


@pytest.mark.parametrize("lora", [None, {"r": 4}, {"r": 8, "targets": ["q_proj", "down_proj"]}])
def test_weights_gradients_and_optimizer_to_the_byte(folder: Path, lora: dict[str, Any] | None) -> None:
    policy = CausalLMPolicy(str(folder), lora=lora, chat=False, max_new_tokens=NEW, dtype="float32")
    parameters = list(policy.model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    sum(p.sum() for p in trained).backward()
    optimizer.step()
    states = [x for state in optimizer.state.values() for name, x in state.items() if name != "step"]
    needs = plan(model=str(folder), lora=lora, max_new_tokens=NEW, dtype="float32")
    own = sum(p.nbytes for p in trained) if lora else 0
    assert memory(needs, "weights") == sum(p.nbytes for p in parameters) - own
    assert memory(needs, "adapter") == own
    assert memory(needs, "gradients") == sum(p.grad.nbytes for p in trained)
    assert memory(needs, "optimizer") == sum(x.nbytes for x in states)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        pytest.param({"amp": False}, "float32", marks=pytest.mark.slow),
        ({"amp": False, "lora": ADAPTER}, "float32"),
        pytest.param({"amp": True}, "float32", marks=pytest.mark.slow),
        ({"amp": True, "lora": ADAPTER}, "float32"),
        ({"amp": True, "lora": ADAPTER, "dtype": torch.bfloat16}, "bfloat16"),
        ({"amp": False, "lora": ADAPTER, "dtype": torch.bfloat16}, "bfloat16"),
    ],
)
def test_activations(monkeypatch: pytest.MonkeyPatch, folder: Path, options: dict[str, Any], dtype: str) -> None:
    monkeypatch.setattr(packed_attention, "spare_rows", lambda count, like: 0)
    short, long = (kept(3, new, **options) - kept(2, new, **options) for new in (NEW, 2 * NEW))

    def planned(new: int) -> float:
        job = Job(
            prompts=1,
            group_size=GROUP,
            micro_batch_size=GROUP,
            rollout_rows=GROUP,
            prompt_tokens=len(tiny_tokenizer()("abcd").input_ids),
            mixed_precision="bf16" if options["amp"] else "no",
        )
        needs = plan(job, model=str(folder), lora=options.get("lora"), max_new_tokens=new, dtype=dtype)
        return memory(needs, "activations") / 2  # of two layers

    assert planned(2 * NEW) - planned(NEW) == pytest.approx(long - short, rel=0.03)


def test_a_token_goes_through_some_experts_only() -> None:
    model = tiny_model("mixtral")
    sizes = sizes_of(model, decoder=model.get_decoder(), head=model.get_output_embeddings(), width=4)
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    assert experts
    assert sizes.matrices - sizes.active == experts - experts * 2 // model.config.num_local_experts


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"model": "no/such-model"}, r"'no/such-model' is not a folder here and not in the Hugging Face cache"),
        ({"quantization": "4bit"}, r"quantization '4bit' is for frozen weights: .* Add an adapter with lora"),
        ({"quantization": "2bit", "lora": {}}, r"quantization must be '4bit' or '8bit', or None, got '2bit'"),
        ({"dtype": "bfloat16"}, r"Trainable parameters would be torch.bfloat16"),
        ({"dtype": "half"}, r"dtype must be 'auto', 'float32'"),
        ({"temperature": -1}, r"temperature must be above 0"),
        ({"lora": {"rank": 4}}, r"lora has no key 'rank'"),
        ({"lora": {"targets": ["no_proj"]}}, r"lora: targets: no linear layer"),
        ({"lora": {}, "reference_offload": True}, r"reference_dtype and reference_offload are for full training"),
        ({"model": 3}, r"model must be a hub id or a folder, got an? int"),
    ],
)
def test_bad_settings(folder: Path, parameters: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        plan(**{"model": str(folder), **parameters})


@pytest.mark.parametrize(
    ("parameters", "reference", "expected"),
    [
        (
            {},
            True,
            [
                "policy.gradient_checkpointing=true",
                "policy.reference_dtype=bfloat16",
                "policy.reference_offload=true",
                "trainer.optimizer=adamw_8bit",
                "policy.lora.r=16",
            ],
        ),
        ({"gradient_checkpointing": True}, False, ["trainer.optimizer=adamw_8bit", "policy.lora.r=16"]),
        (
            {"lora": {}, "dtype": "float32"},
            True,
            ["policy.gradient_checkpointing=true", "policy.dtype=bfloat16", "policy.quantization=4bit"],
        ),
        ({"lora": {}, "quantization": "4bit", "gradient_checkpointing": True}, True, []),
    ],
)
def test_remedies(folder: Path, parameters: dict[str, Any], reference: bool, expected: list[str]) -> None:
    needs = plan(Job(**{**vars(JOB), "reference": reference}), model=str(folder), **parameters)
    assert [word for remedy in needs.remedies for word in remedy.words] == expected


def test_averages_of_8_bits(qwen: None) -> None:
    """The embedding, which is the head too, keeps float32; of an adapter all is rounded. A step moves as much less."""
    wide, rounded = (Job(**{**vars(JOB), "optimizer": name}) for name in ("adamw", "paged_adamw_8bit"))
    whole, table = 1_543_714_304, 151_936 * 1536
    sizes = [memory(plan(job), "optimizer") for job in (wide, rounded)]
    assert sizes == [8 * whole, 8 * table + 2.03125 * (whole - table)]
    moved = [sum(work.bytes for work in plan(job).works if work.phase == "optimizer") for job in (wide, rounded)]
    assert moved == [28 * whole, 12 * whole + 2 * sizes[1]]
    assert not any("optimizer" in word for remedy in plan(rounded).remedies for word in remedy.words)
    adapters = [memory(plan(job, lora={"r": 16}), "optimizer") for job in (wide, rounded)]
    assert adapters[1] == adapters[0] * 2.03125 / 8


@pytest.mark.slow
def test_what_an_engine_draws_is_not_counted(qwen: None) -> None:
    own, served = plan(lora={"r": 16}), plan(lora={"r": 16}, engine={"url": "http://gpu-2:8000"})
    assert memory(own, "cache", "rollout") > 0
    assert memory(served, "cache", "rollout") == memory(served, "logits", "rollout") == 0
    assert memory(served, "activations") == memory(own, "activations")
    assert {work.phase for work in own.works} - {work.phase for work in served.works} == {"rollout"}
    assert served.assumptions[-1] == "A server draws; what it takes is not counted."
    beside = plan(lora={"r": 16}, engine={"offline": True, "gpu_memory_utilization": 0.4, "sleep": True})
    assert beside.assumptions[-1].startswith("vLLM draws, and takes 40% of the GPU's memory for itself while it draws")


def test_teachers_cost_their_adapters(tmp_path: Path) -> None:
    """Ranks 2 and 3 together are five fourths of one of rank 4; without a reference they are not asked."""
    base, teachers = save_tiny_model(tmp_path / "base"), {}
    for rank in (2, 3):
        teachers[f"r{rank}"] = folder = tmp_path / str(rank)
        folder.mkdir()
        CausalLMPolicy(base, max_new_tokens=8, lora={"r": rank}, device="cpu").export(folder)
    taught = plan(replace(JOB, reference=True), model=str(base), lora={"r": 4}, teachers=teachers)
    assert memory(taught, "reference") == 5 / 4 * memory(taught, "adapter") > 0
    assert memory(plan(model=str(base), lora={"r": 4}, teachers=teachers), "reference") == 0
