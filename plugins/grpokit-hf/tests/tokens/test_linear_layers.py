"""Weights for decoding: equal numbers, an untouched model."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import chain
from typing import Any

import peft
import pytest
import torch
from tiny_decoders import SHAPE, build
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from grpokit_hf.cpu import products
from grpokit_hf.models.forwards import replaced_forwards
from grpokit_hf.tokens.linear_layers import Casts, for_decoding, for_scoring


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
            attention = model.base_model.model.model.layers[0].self_attn
            layer = attention.q_proj
            assert ("forward" in vars(layer)) == (not dora and not copies)  # DoRA's layers compute as they are
            assert ("forward" in vars(attention)) == (not dora and copies)  # for all of its layers
            assert "forward" not in vars(layer.base_layer) or (dora and copies)
        with model.disable_adapter(), for_decoding(model, copies=copies):
            off = model(input_ids=ids).logits
        after = model(input_ids=ids).logits
    assert (want - base).abs().max() > 0.1
    assert torch.allclose(have, want, rtol=0, atol=1e-5)
    assert torch.allclose(off, base, rtol=0, atol=1e-5)
    assert torch.equal(after, want)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize("copies", [False, True])
def test_adapters_that_are_not_merged_compute_as_they_are(copies: bool) -> None:
    torch.manual_seed(0)
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(build("grouped"), settings).eval()
    attention = model.base_model.model.model.layers[0].self_attn
    ids = torch.randint(1, 50, (2, 6))
    with torch.no_grad():
        want = model(input_ids=ids).logits
        with for_decoding(model, copies=copies, merged=False):
            have = model(input_ids=ids).logits
            assert "forward" not in vars(attention.q_proj)
            assert ("forward" in vars(attention.k_proj)) == copies
    assert torch.allclose(have, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_an_adapter_learns_first_is_not_rounded_away(dtype: torch.dtype, amp: bool) -> None:
    """It is a thirtieth of a weight's last digit here. To nearest, a sixth of it would be left."""
    torch.manual_seed(0)
    size, digit = 512, 0.02 * torch.finfo(dtype).eps
    model = nn.Sequential(nn.Linear(size, size, bias=False))
    model[0].weight.data = torch.empty(size, size).normal_(0, 0.02).to(dtype)
    if amp:
        model.float()
    settings = peft.LoraConfig(r=4, lora_alpha=4, target_modules=["0"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, settings).eval()
    layer = adapted.base_model.model[0]
    down, up = layer.lora_A["default"].weight.data, layer.lora_B["default"].weight.data
    up *= digit / 30 / (up @ down).std()
    delta, base = (up @ down).double(), layer.base_layer.weight.detach().double()

    def merged() -> torch.Tensor:
        inputs = torch.eye(size, dtype=dtype)
        with torch.no_grad(), torch.autocast("cpu", dtype, enabled=amp), for_decoding(adapted, copies=False):
            return adapted(inputs).T.double()

    change = merged() - base
    share = (change * delta).sum() / delta.square().sum()
    deviation = ((change - delta) * delta).norm() / delta.square().sum()
    assert deviation < 0.01
    assert abs(share - 1) < 4 * deviation
    read = torch.randn(64, 4, dtype=torch.float64) @ down.double()  # what the adapter reads
    to_adapted, to_base = (float((read @ (change - x).T).norm()) for x in (delta, 0.0))
    assert to_adapted < 0.4 * to_base
    assert torch.equal(merged() - base, change)


def test_forwards_that_others_have_replaced_come_back() -> None:
    layer = nn.Linear(2, 2)

    def hooked(x: torch.Tensor) -> torch.Tensor:
        return x

    layer.forward = hooked
    with replaced_forwards([(layer, lambda x: 2 * x)]):
        assert layer(torch.ones(1)) == 2
    assert layer.forward is hooked


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


class Counted(TorchDispatchMode):
    """Counts the casts of a tensor of some shape."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape, self.casts = shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.casts += func is torch.ops.aten._to_copy.default and args[0].shape == self.shape
        return func(*args, **(kwargs or {}))


def test_frozen_weights_are_cast_once_for_many_passes() -> None:
    torch.manual_seed(0)
    model, casts = nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 3)), Casts()
    frozen = model[0].requires_grad_(False)
    x = torch.randn(4, 8, requires_grad=True)

    def passed(**options: Any) -> list[torch.Tensor]:
        x.grad = None
        with torch.autocast("cpu", torch.bfloat16), for_scoring(model, **options):
            y = model(x)
        y.float().square().sum().backward()
        return [y, x.grad]

    with Counted(frozen.weight.shape) as plain:
        want = [passed() for _ in range(3)]
    with Counted(frozen.weight.shape) as kept:
        have = [passed(casts=casts) for _ in range(3)]
    assert (plain.casts, kept.casts) == (3, 1)
    assert all(torch.equal(a, b) for a, b in zip(chain(*have), chain(*want), strict=True))
    with torch.no_grad():
        frozen.weight.zero_()
    assert not torch.equal(passed(casts=casts)[0], want[0][0])  # weights that were loaded later count


@pytest.mark.parametrize("wide", [False, True])
def test_scoring_has_the_products_of_the_model(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By either library, whatever this machine prefers, and with the gradients of biases."""
    monkeypatch.setattr(products, "_wide_vectors", lambda: wide)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True)).eval()
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(p)
    ids = torch.randint(1, 50, (2, 6), generator=torch.Generator().manual_seed(0))
    gradients = []
    for context in (nullcontext(), for_scoring(model)):
        model.zero_grad()
        with context:
            logits = model(input_ids=ids).logits
            replaced = "forward" in vars(model.lm_head)
            logits.square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert replaced == wide
    for quick, plain in zip(*gradients, strict=True):
        assert (quick - plain).norm() <= 1e-5 * plain.norm()
