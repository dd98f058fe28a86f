"""Joint products: the same hidden states as the model's own layers, in fewer calls, for every layer that is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import peft
import pytest
import torch
import transformers
from tiny_decoders import SHAPE
from torch import Tensor, nn
from torch.nn.functional import linear

from grpokit_hf.tokens import joint_layers, linear_layers
from grpokit_hf.tokens.linear_layers import for_decoding, for_scoring
from grpokit_hf.tokens.packed_attention import Rules, SharedPrompts, install, run

FAMILIES: dict[str, tuple[str, dict[str, Any], int]] = {  # the model, and how many of two attention layers are joint
    "Llama": ("Llama", {}, 2),
    "biases": ("Qwen2", {}, 2),  # of queries, keys and values
    "some biases": ("Qwen2", {}, 2),
    "norms": ("Qwen3", {"head_dim": 4}, 2),
    "window": ("Mistral", {"sliding_window": 3}, 2),
    "caps": ("Gemma2", {"head_dim": 4, "sliding_window": 3, "attn_implementation": "eager"}, 2),
    "turns of neighbours": ("Glm4", {"head_dim": 4, "partial_rotary_factor": 1.0}, 0),
    "half is turned": ("Glm4", {"head_dim": 4, "partial_rotary_factor": 0.5}, 0),
    "norm over all heads": ("Olmo2", {}, 0),
    "one layer without turns": ("SmolLM3", {"no_rope_layer_interval": 2}, 1),
    "clip": ("Olmo", {"clip_qkv": 1e3, "eos_token_id": None}, 0),  # that no usual token reaches
    "scale by position": ("Ministral3", {"head_dim": 4}, 0),
}


def build(family: str) -> Any:
    torch.manual_seed(0)
    name, changes, _ = FAMILIES[family]
    model = getattr(transformers, f"{name}ForCausalLM")(
        getattr(transformers, f"{name}Config")(**SHAPE | changes)
    ).eval()
    for parameter, p in model.named_parameters():
        if "norm" in parameter or "bias" in parameter:
            nn.init.normal_(p, 1.0, 0.3)
    if family == "some biases":
        model.get_decoder().layers[0].self_attn.k_proj.bias = None
    install(model)
    return model


def hidden(model: Any, *, prompt: int = 4, samples: Sequence[int] = (5, 5)) -> Tensor:
    """The last hidden states of a prompt of 4 tokens and two samples of 5."""
    packed = SharedPrompts([prompt], [samples], device=torch.device("cpu"))
    tokens = torch.randint(1, 50, (prompt + sum(samples),), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return run(model.get_decoder(), tokens, packed.positions(), packed)


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_stay(family: str, adapted: bool) -> None:
    model = build(family)
    whole = model
    if adapted:
        whole = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    want = hidden(model)
    with for_decoding(whole.eval()):
        hidden(model, prompt=0, samples=[1])  # a first token that sees only itself says nothing of what follows
        have = hidden(model)
    with for_decoding(whole):  # now it is known which layers are joint
        assert torch.equal(hidden(model), have)
    assert torch.allclose(have, want, rtol=1e-4, atol=1e-4)
    attention = [layer.self_attn for layer in model.get_decoder().layers]
    assert sum(joint_layers._rules.get(layer) is not None for layer in attention) == FAMILIES[family][2]
    assert torch.equal(hidden(model), want)


def test_rules_are_those_of_the_layer() -> None:
    """Gemma2's layers see 3 tokens and all tokens in turn, and cap their scores."""
    model = build("caps")
    with for_decoding(model):
        hidden(model)
    rules = [joint_layers._rules[layer.self_attn] for layer in model.model.layers]
    scale = model.config.query_pre_attn_scalar**-0.5
    assert rules == [Rules(scale=scale, window=window, softcap=50.0) for window in (3, None)]


def test_a_layer_needs_four_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """And four copies, also when it is found out what the layer computes."""
    model, copies, products = build("Llama"), [], []

    def counted(weight: Tensor, bias: Tensor | None, *, rows: int) -> Callable[[Tensor], Tensor]:
        copies.append(len(weight))

        def multiply(x: Tensor) -> Tensor:
            products.append(len(weight))
            return linear(x, weight, bias)

        return multiply

    monkeypatch.setattr(linear_layers, "packed", counted)
    with for_decoding(model):
        hidden(model)
        products.clear()
        hidden(model)
    assert copies == products == 2 * [16 + 8 + 8, 16, 24 + 24, 16]  # q with k and v, o, gate with up, down


def test_a_call_without_packed_tokens_takes_the_modules_own_forward() -> None:
    model = build("Llama")
    ids = torch.randint(1, 50, (2, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = model(input_ids=ids).logits
        with for_decoding(model):
            assert torch.allclose(model(input_ids=ids).logits, want, rtol=0, atol=1e-5)


def test_models_in_other_precisions_are_left_alone() -> None:
    model = build("Llama").to(torch.bfloat16)
    want = hidden(model)
    with for_decoding(model):
        assert (hidden(model) - want).norm() <= 0.02 * want.norm()
    assert not any(layer.self_attn in joint_layers._rules for layer in model.model.layers)


def test_a_module_whose_parts_are_listened_to_is_left_alone() -> None:
    model, heard = build("Llama"), []
    first = model.model.layers[0]
    for part in (first.self_attn.k_proj, first.mlp.up_proj):
        part.register_forward_hook(lambda _, __, y: heard.append(y.shape[-1]))
    with for_decoding(model):
        hidden(model)
    assert heard == [24, 24, 8, 24]  # twice in the trial of the MLP, in fact and by the formula


def test_parts_that_are_no_linear_layers() -> None:
    """Such as those of Gemma 4's vision tower, which have no sizes."""

    class Clipped(nn.Module):
        def __init__(self, inside: nn.Linear) -> None:
            super().__init__()
            self.inside = inside

        def forward(self, x: Tensor) -> Tensor:
            return self.inside(x).clamp(-0.1, 0.1)

    model = build("Llama")
    first = model.model.layers[0]
    for module, name in ((first.self_attn, "v_proj"), (first.self_attn, "q_proj"), (first.mlp, "down_proj")):
        setattr(module, name, Clipped(getattr(module, name)))
    want = hidden(model)
    for context in (for_decoding(model), for_scoring(model)):
        with context:
            assert torch.allclose(hidden(model), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 3])
def test_a_layer_that_gets_no_rows(rows: int) -> None:
    layer = nn.Sequential(nn.Linear(4, 6))
    with torch.no_grad(), for_decoding(layer):
        assert layer(torch.zeros(2, rows, 4)).shape == (2, rows, 6)
