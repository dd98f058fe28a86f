"""Recomputing layers changes memory, and neither log-probs nor gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from tiny_models import FAMILIES, tiny_model
from torch import nn

from grpokit import UsageError
from grpokit_hf.models.adapters import AdapterSettings, add_adapter
from grpokit_hf.models.checkpointing import recomputed


def saved_and_gradients(model: Any) -> tuple[int, torch.Tensor, list[torch.Tensor]]:
    """Bytes kept for the backward pass, logits, gradients."""
    kept: list[int] = []
    tokens = torch.arange(64).reshape(2, 32)
    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.nbytes), x)[1], lambda x: x):
        logits = model(input_ids=tokens, use_cache=False).logits
    logits.square().mean().backward()
    return sum(kept), logits.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_numbers_with_less_memory(family: str, adapter: bool) -> None:
    model: Any = tiny_model(family, num_hidden_layers=4) if family != "gemma3" else tiny_model(family)
    model = add_adapter(model, AdapterSettings(r=2)) if adapter else model
    full, logits, gradients = saved_and_gradients(model)
    with recomputed(model):
        less, again, others = saved_and_gradients(model)
        assert not any(m.training for m in model.modules())
    assert less < 0.8 * full
    assert torch.equal(again, logits)
    assert gradients
    for a, b in zip(gradients, others, strict=True):
        torch.testing.assert_close(a, b)
    assert not any(m.training for m in model.modules())
    assert saved_and_gradients(model)[0] == full


def test_dropout_stays_off_in_a_layer_that_drops_out_itself() -> None:
    """OPT's layers look at their own flag, and have no module for it."""
    sizes = {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 32, "num_hidden_layers": 4}
    config = transformers.OPTConfig(vocab_size=64, num_attention_heads=4, max_position_embeddings=64, **sizes)
    assert config.dropout == 0.1
    model = transformers.OPTForCausalLM(config).eval()
    _, logits, gradients = saved_and_gradients(model)
    with recomputed(model):
        _, again, others = saved_and_gradients(model)
    assert torch.equal(again, logits)
    assert all(torch.allclose(a, b) for a, b in zip(gradients, others, strict=True))


def test_layers_are_recomputed_with_the_forwards_of_the_first_pass() -> None:
    model: Any = tiny_model("llama")
    tokens = torch.arange(12)[None]

    def gradient(layers: Any) -> torch.Tensor:
        model.zero_grad()
        for linear in layers:
            linear.forward = lambda x, own=linear: 2 * nn.functional.linear(x, own.weight)
        loss = model(input_ids=tokens, use_cache=False).logits.square().mean()
        for linear in layers:
            del linear.forward
        loss.backward()
        assert not any("forward" in vars(linear) for linear in layers)
        return model.model.layers[0].mlp.up_proj.weight.grad.clone()  # type: ignore[no-any-return]

    doubled = [model.model.layers[0].mlp.down_proj, model.model.layers[1].self_attn.o_proj]
    plain, expected = gradient([]), gradient(doubled)
    assert not torch.allclose(plain, expected)
    with recomputed(model):
        torch.testing.assert_close(gradient(doubled), expected)


def test_a_model_that_cannot() -> None:
    with (
        pytest.raises(UsageError, match="Linear has no layers that transformers can recompute"),
        recomputed(nn.Linear(1, 1)),
    ):
        pass
