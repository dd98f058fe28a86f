"""Weights for decoding: equal numbers, an untouched model."""

from __future__ import annotations

from contextlib import nullcontext

import peft
import pytest
import torch

from grpokit.policies.linear_layers import for_decoding, for_scoring
from tiny_decoders import build


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("dora", [False, True])
def test_merged_adapters_give_the_same_logits(copies: bool, dora: bool) -> None:
    torch.manual_seed(0)
    settings = peft.LoraConfig(r=2, target_modules="all-linear", use_dora=dora, init_lora_weights=False)
    model = peft.get_peft_model(build("grouped"), settings).eval()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    ids = torch.randint(1, 50, (2, 6))
    with torch.no_grad():
        want = model(input_ids=ids).logits
        with model.disable_adapter():
            base = model(input_ids=ids).logits
        with for_decoding(model, copies=copies):
            have = model(input_ids=ids).logits
            layer = model.base_model.model.model.layers[0].self_attn.q_proj
            assert ("forward" in vars(layer)) != dora  # DoRA's layers compute as they are
            assert "forward" not in vars(layer.base_layer) or (dora and copies)
        with model.disable_adapter(), for_decoding(model, copies=copies):
            off = model(input_ids=ids).logits
        after = model(input_ids=ids).logits
    assert (want - base).abs().max() > 0.1
    assert torch.allclose(have, want, rtol=0, atol=1e-5)
    assert torch.allclose(off, base, rtol=0, atol=1e-5)
    assert torch.equal(after, want)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_under_autocast_weights_are_cast_once() -> None:
    model = build("grouped")
    ids = torch.randint(1, 50, (2, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        want = model(input_ids=ids).logits
        with for_decoding(model):
            assert torch.equal(model(input_ids=ids).logits, want)
            weight = model.lm_head.forward.__closure__[1].cell_contents
            assert weight.dtype == torch.bfloat16
        with for_scoring(model):
            assert "forward" not in vars(model.lm_head)


def test_scoring_has_the_products_of_the_model() -> None:
    model = build("grouped")
    ids = torch.randint(1, 50, (2, 6), generator=torch.Generator().manual_seed(0))
    gradients = []
    for context in (nullcontext(), for_scoring(model)):
        model.zero_grad()
        with context:
            model(input_ids=ids).logits.square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for quick, plain in zip(*gradients, strict=True):
        assert (quick - plain).norm() <= 1e-5 * plain.norm()
