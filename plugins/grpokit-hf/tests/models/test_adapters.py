"""An adapter begins as nothing, trains alone and leaves its base alone."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers
from tiny_models import FAMILIES, IDS, ROWS, SHAPE, seeded, tiny_model
from tiny_vision import tiny_vision_model

from grpokit import UsageError, adapter_off
from grpokit_hf.models.adapters import AdapterSettings, add_adapter, linear_layers

TOKENS = torch.arange(24).reshape(2, 12)
SMALL = {k: v for k, v in SHAPE.items() if k != "head_dim"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj"}

# Configuration class -> its settings, and what `all-linear` adapts: no router, no experts, not what peft refuses.
ADAPTED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "PhimoeConfig": (SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2}, ATTENTION),
    "Llama4TextConfig": (
        SHAPE | {"intermediate_size_mlp": 32, "num_local_experts": 2, "interleave_moe_layer_step": 2},
        ATTENTION | MLP,  # of the layer without experts, and of what its experts share
    ),
    "JambaConfig": (
        SMALL | {"num_experts": 2, "num_experts_per_tok": 1, "attn_layer_offset": 1, "attn_layer_period": 2},
        ATTENTION | MLP | {"in_proj", "x_proj", "dt_proj", "out_proj"},
    ),
    "DeepseekV3Config": (
        SMALL
        | {"num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
        | {"v_head_dim": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
        | {"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
        {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"},
    ),
    "MambaConfig": (
        {"vocab_size": ROWS, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
        {"in_proj", "x_proj", "dt_proj"},
    ),
    "FalconH1Config": (
        SHAPE | {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8},
        ATTENTION | MLP | {"in_proj"},
    ),
    "Gemma3nTextConfig": (
        SHAPE
        | {"num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"], "altup_num_inputs": 2}
        | {"vocab_size_per_layer_input": ROWS, "hidden_size_per_layer_input": 4, "laurel_rank": 4}
        | {"intermediate_size": [32, 32], "activation_sparsity_pattern": [0.0, 0.0]},
        ATTENTION
        | MLP
        | {"linear_left", "linear_right", "prediction_coefs", "correction_coefs", "modality_router"}
        | {"per_layer_model_projection", "per_layer_projection", "per_layer_input_gate"}
        | {"altup_projections.0", "altup_unembed_projections.0"},  # and not "0", which is the first layer as well
    ),
}


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS).logits  # type: ignore[no-any-return]


def train(model: Any, steps: int = 3) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05, weight_decay=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_adapter_trains(family: str, dora: bool) -> None:
    model = tiny_model(family)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    start = logits(model)
    adapted = add_adapter(model, AdapterSettings(r=4, alpha=8, dora=dora))
    torch.testing.assert_close(logits(adapted), start, rtol=1e-5, atol=1e-5)  # DoRA divides by the norm again
    train(adapted)
    assert (logits(adapted) - start).abs().max() > 0.1
    with adapter_off(adapted):
        assert torch.equal(logits(adapted), start)
    after = {name.replace("base_layer.", ""): tensor for name, tensor in adapted.get_base_model().state_dict().items()}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)


def test_the_adapter_of_a_bfloat16_base_is_float32() -> None:
    adapted = add_adapter(tiny_model("llama").bfloat16(), AdapterSettings(r=2))
    assert {p.dtype for p in adapted.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in adapted.parameters() if not p.requires_grad} == {torch.bfloat16}


@pytest.mark.parametrize(("settings", "scale"), [({"alpha": 12}, 3.0), ({"alpha": 12, "rslora": True}, 6.0)], ids=str)
def test_the_scale_is_alpha_by_the_rank_or_its_root(settings: dict[str, Any], scale: float) -> None:
    adapted = add_adapter(tiny_model("llama"), AdapterSettings(r=4, **settings))
    layer = adapted.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    with torch.no_grad():
        up.copy_(torch.linspace(-1, 1, up.numel()).view_as(up))
        x = torch.eye(down.shape[1])
        torch.testing.assert_close(layer(x) - layer.base_layer(x), scale * (up @ down).T)


def test_initial_weights_follow_from_the_seed_alone() -> None:
    def first(seed: int) -> torch.Tensor:
        adapted = add_adapter(tiny_model("llama"), AdapterSettings(r=2, seed=seed))
        return next(p for name, p in adapted.named_parameters() if "lora_A" in name)

    torch.manual_seed(1)
    state = torch.get_rng_state()
    weights = first(0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(first(0), weights)
    assert not torch.equal(first(1), weights)


def test_all_linear_leaves_out_head_and_vision_tower() -> None:
    text = add_adapter(tiny_model("llama"), AdapterSettings(r=2))
    adapted = {name.split(".lora_A")[0].rpartition(".")[2] for name, _ in text.named_parameters() if "lora_A" in name}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    for family in ("qwen2.5-vl", "llava"):
        seeing = add_adapter(tiny_vision_model(family), AdapterSettings(r=2))
        names = [name for name, p in seeing.named_parameters() if p.requires_grad]
        assert len(names) == 2 * 2 * 7  # A and B in two layers of seven
        assert all(".language_model." in name for name in names), names


def tiny(kind: str) -> Any:
    config = getattr(transformers, kind)(**ADAPTED[kind][0] | IDS)
    return seeded(lambda: transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32), 0)


@pytest.mark.parametrize("kind", ADAPTED)
def test_all_linear_leaves_out_experts_and_router_and_what_peft_cannot_adapt(kind: str) -> None:
    model = tiny(kind)
    start = logits(model)
    adapted = add_adapter(model, AdapterSettings(r=2))
    torch.testing.assert_close(logits(adapted), start, rtol=1e-5, atol=1e-5)
    names = {name.split(".lora_")[0] for name, p in adapted.named_parameters() if p.requires_grad}
    assert {re.sub(r".*\.(?!\d)", "", name) for name in names} == ADAPTED[kind][1]
    train(adapted)
    assert (logits(adapted) - start).abs().max() > 0.1


@pytest.mark.parametrize(
    ("kind", "targets", "words"),
    [
        (
            "MambaConfig",
            ["out_proj"],
            "of MambaForCausalLM that can be adapted is called 'out_proj'.* It has: dt_proj, ",
        ),
        ("DeepseekV3Config", [*MLP], "of DeepseekV3ForCausalLM that can be adapted is called '.*_proj'.* It has: kv_a"),
        ("Llama4TextConfig", ["router"], "of Llama4ForCausalLM that can be adapted is called 'router'"),
        ("Gemma3nTextConfig", ["0"], "peft cannot adapt Gemma3nForCausalLM: Target module Gemma3nTextDecoderLayer"),
    ],
)
def test_targets_that_peft_cannot_adapt(kind: str, targets: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=f"lora: targets: .*{words}"):
        add_adapter(tiny(kind), AdapterSettings(targets=targets))


def test_targets_by_name() -> None:
    adapted = add_adapter(tiny_model("llama"), AdapterSettings(r=2, targets=["q_proj", "layers.1.mlp.up_proj"]))
    names = {
        name.split(".lora_A")[0].split("model.layers.")[1] for name, _ in adapted.named_parameters() if "_A" in name
    }
    assert names == {"0.self_attn.q_proj", "1.self_attn.q_proj", "1.mlp.up_proj"}
    assert "transformer.h.0.attn.c_attn" in linear_layers(tiny_model("gpt2"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"targets": ["q_prj"]},
            r"lora: targets: no linear layer of LlamaForCausalLM that can be adapted is called 'q_prj' \(did you mean",
        ),
        (
            {"targets": ["lm_head"]},
            r"lora: targets: 'lm_head' is the output layer of LlamaForCausalLM, which is not adapted. It has: d",
        ),
        (
            {"targets": ["all-linear", "q_proj"]},
            "lora: targets: 'all-linear' stands alone, got .*. Leave out the one or",
        ),
        ({"targets": ["q_proj", "c_attn"]}, "is called 'c_attn'.* It has: down_proj, .* or say 'all-linear'"),
        ({"targets": "all_linear"}, r"is called 'all_linear' \(did you mean 'all-linear'\?\)"),
        ({"targets": []}, r"lora: targets must be names such as \[q_proj, v_proj\], or 'all-linear', got \[\]"),
        ({"targets": [3]}, r"lora: targets must be a text, or a list of texts \(3 is wrong\), got a list of 1"),
        ({"targets": 3}, "lora: targets must be a text, or a list of texts, got 3"),
        ({"dropout": 0.05}, "lora: dropout must be 0, got 0.05. With dropout, the log-probs"),
        ({"rank": 8}, r"lora has no key 'rank' \(did you mean 'r'\?\)\. It has: r, alpha, targets"),
        ({"r": 0}, "lora: r must be at least 1, got 0. r: the rank of each update"),
        (16, r"lora must be a mapping such as \{r: 16, alpha: 32\}, got an int"),
    ],
)
def test_settings_that_cannot_be(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        add_adapter(tiny_model("llama"), AdapterSettings.read(given))
