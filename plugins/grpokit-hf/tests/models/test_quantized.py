"""Layers that are quantised in place: how far they are from the weights, what a row depends on, and what they take."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import T5Config, T5EncoderModel

from grpokit import UsageError
from grpokit_hf.models.quantized import check_trainable, layers_of, quantise
from grpokit_hf.plan.counting import stored

WIDTH = 256
BITS = ("4bit", "8bit")


class Net(nn.Module):
    """A layer before the blocks, three blocks of a layer, and one behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=place > 0) for place in range(3))
        self.behind = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """x [n, WIDTH] -> [n, WIDTH]."""
        x = self.before(x)
        for block in self.blocks:
            x = torch.tanh(block(x))
        y: Tensor = self.behind(x)
        return y


def net(quantization: str | None = None, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(seed)
    model: Any = Net().to(dtype).requires_grad_(False).eval()
    if quantization is not None:
        pytest.importorskip("bitsandbytes")
        quantise(model, quantization, device="cpu")
    return model


def rows(dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows of which one is large: the layer of bitsandbytes would compute some of the others' columns otherwise."""
    x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1))
    x[2, 7] = 40.0
    return x.to(dtype)


def weights(layer: Any) -> Tensor:
    """What a layer without a bias multiplies by."""
    with torch.no_grad():
        whole: Tensor = layer(torch.eye(WIDTH)).T
    return whole


def test_the_blocks_are_quantised_and_nothing_else() -> None:
    assert [*layers_of(net())] == ["blocks.0", "blocks.1", "blocks.2"]
    encoder = T5EncoderModel(T5Config(num_layers=2, d_model=16, d_kv=4, d_ff=8, num_heads=2, vocab_size=8))
    own = {name.rpartition(".")[2] for name in layers_of(encoder)}
    assert own == {"q", "k", "v", "o", "wi"}  # its code reads the type of wo's weight


@pytest.mark.parametrize(("quantization", "away"), [("4bit", (0.08, 0.12)), ("8bit", (0.004, 0.01))])
def test_weights_are_rounded_and_always_alike(quantization: str, away: tuple[float, float]) -> None:
    """`away`: the distance of weights from a Gaussian, as a share of their norm."""
    torch.manual_seed(0)
    model: Any = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False)])
    full = nn.init.normal_(model.blocks[0].weight).detach().clone()
    again = copy.deepcopy(model)
    pytest.importorskip("bitsandbytes")
    for each in (model, again):
        quantise(each.requires_grad_(False).eval(), quantization, device="cpu")
    rounded = weights(model.blocks[0])
    assert torch.equal(rounded, weights(again.blocks[0]))
    assert away[0] < float((rounded - full).norm() / full.norm()) < away[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("quantization", BITS)
def test_a_row_is_the_same_alone_and_with_gradient(quantization: str, dtype: torch.dtype) -> None:
    model, x = net(quantization, dtype=dtype), rows(dtype)
    with torch.no_grad():
        together = model(x)
        alone = torch.cat([model(row[None]) for row in x])
    assert float((together - alone).abs().max()) <= (1e-6 if dtype == torch.float32 else 0.01)
    traced = model(x.requires_grad_())
    assert torch.equal(traced.detach(), together)
    assert traced.dtype == dtype


@pytest.mark.parametrize("quantization", BITS)
def test_the_gradient_is_that_of_the_rounded_weights(quantization: str) -> None:
    model, plain = net(quantization), net()
    for place, layer in enumerate(model.blocks):
        bias = layer.bias
        layer.bias = None
        plain.blocks[place].weight.copy_(weights(layer))
        layer.bias = bias
    slopes = []
    for each in (model, plain):
        x = rows().requires_grad_()
        each(x).square().sum().backward()
        slopes.append(x.grad)
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("quantization", BITS)
def test_the_backward_pass_keeps_no_unfolded_weights(quantization: str) -> None:
    model, kept = net(quantization), []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(rows().requires_grad_())
    own = {p.data_ptr() for p in model.parameters()}
    assert not [x for x in kept if x.numel() >= WIDTH * WIDTH and x.is_floating_point() and x.data_ptr() not in own]


@pytest.mark.parametrize("quantization", BITS)
def test_the_plan_counts_what_is_there(quantization: str) -> None:
    """Weights, biases, and all that stands beside the weights."""
    model, taken = net(quantization, dtype=torch.bfloat16), 0
    taken += sum(p.nbytes for p in model.parameters())
    for layer in model.blocks:
        state = getattr(layer.weight, "quant_state", None)
        if state is None:
            taken += (layer.weight.SCB if layer.state.SCB is None else layer.state.SCB).nbytes
        else:
            taken += state.absmax.nbytes + state.state2.absmax.nbytes
    planned = stored(net(dtype=torch.bfloat16), width=2, quantization=quantization)
    assert planned == pytest.approx(taken, rel=0.01)


def test_a_quantised_model_is_not_trained() -> None:
    with pytest.raises(UsageError, match=r"has quantised weights \(such as 'blocks.0.weight'\), which cannot be"):
        check_trainable("net", net("8bit"))
