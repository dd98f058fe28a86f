"""Norms and gated MLPs that keep less: the same numbers, and the tensors that a graph holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from tiny_decoders import SHAPE
from torch import Tensor, nn
from transformers.models.llama import modeling_llama

from grpokit_hf.tokens.lean_layers import _Down, _Norm, lean_forwards
from grpokit_hf.tokens.linear_layers import for_scoring

H, MLP = SHAPE["hidden_size"], SHAPE["intermediate_size"]
FAMILIES = {  # family: norms and MLPs of two layers that keep less
    "Llama": (5, 2),
    "Mistral": (5, 2),
    "Qwen3": (9, 2),  # with norms of queries and keys
    "Phi3": (5, 0),  # gate and up in one layer
    "Gemma2": (0, 2),  # norms with 1 + weight
}


def build(family: str) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**SHAPE)).eval()
    for name, p in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(p, 1.0, 0.3)
    return model


def kept(compute: Callable[[], Tensor], model: nn.Module) -> tuple[Tensor, int]:
    """What `compute` gives, and how many numbers its graph holds beside the parameters."""
    sizes: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in own:
            held.append(x)  # so that no other tensor gets its address
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // 4
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = compute()
    return result, sum(sizes.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients_of_a_model_stay(family: str) -> None:
    model = build(family)
    forwards = dict(lean_forwards(model))
    norms = sum("Norm" in type(module).__name__ for module in forwards)
    assert (norms, len(forwards) - norms) == FAMILIES[family]
    ids = torch.randint(1, 50, (2, 6), generator=torch.Generator().manual_seed(0))
    plain = model(input_ids=ids).logits
    plain.square().sum().backward()
    want = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with for_scoring(model):
        lean = model(input_ids=ids).logits
        lean.square().sum().backward()
    assert (lean - plain).norm() <= 1e-5 * plain.norm()
    for name, p in model.named_parameters():
        assert (p.grad - want[name]).norm() <= 1e-5 * want[name].norm(), name


@pytest.mark.parametrize(("frozen", "dropped"), [(False, 2 * (2 * H + 2 * MLP) + H), (True, 2 * MLP)])
def test_a_model_keeps_less(frozen: bool, dropped: int) -> None:
    """A token's five norms drop H numbers each, and its two MLPs 2 MLP each, or MLP where weights are frozen."""
    model = build("Llama")
    ids = torch.randint(1, 50, (2, 6), generator=torch.Generator().manual_seed(0))
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    model.requires_grad_(not frozen)
    _, plain = kept(lambda: model(inputs_embeds=embedded).logits.sum(), model)
    with for_scoring(model, lean=False):
        assert not any("forward" in vars(module) for module, _ in lean_forwards(model))
    with for_scoring(model):
        _, lean = kept(lambda: model(inputs_embeds=embedded).logits.sum(), model)
    assert plain - lean == ids.numel() * dropped


class Gated(nn.Module):
    """down(act(gate(x)) * up(x)), clamped before `down`."""

    def __init__(self, act: nn.Module, *, most: float = torch.inf, width: int = 8) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, width)
        self.act_fn, self.most = act, most

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj((self.act_fn(self.gate_proj(x)) * self.up_proj(x)).clamp(-self.most, self.most))


class Scaled(Gated):
    """The same times a weight that begins as 1."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__(act)
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor


def test_an_mlp_that_does_more_is_left_alone() -> None:
    """Also one that clamps what a usual token never reaches, or trains more than its three layers."""
    torch.manual_seed(0)
    kinds = [Gated(nn.SiLU(), most=most) for most in (0.1, 10.0, 1e4)] + [Gated(nn.PReLU()), Scaled(nn.SiLU())]
    free, narrow = Gated(nn.SiLU()), Gated(nn.SiLU(), width=5)
    assert [module for module, _ in lean_forwards(nn.ModuleList([*kinds, free, narrow]))] == [free, narrow]
    assert not list(lean_forwards(free.to(torch.bfloat16)))
    with for_scoring(narrow):
        assert narrow(torch.randn(2, 3, 8)).shape == (2, 3, 5)


def test_a_norm_with_another_eps_is_left_alone() -> None:
    class Stated(modeling_llama.LlamaRMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.used)

    norms = []
    for used in (1e-5, 1e-6, 1e-8):
        norms.append(Stated(8))
        norms[-1].used = used
    assert [module for module, _ in lean_forwards(nn.ModuleList(norms))] == [norms[1]]


def test_a_norm_that_takes_a_gate_is_left_alone() -> None:
    """Mamba's norms take one or not, and so give what the formula gives when they are tried without."""

    class Gated(modeling_llama.LlamaRMSNorm):
        def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
            return super().forward(x if gate is None else x * gate)

    plain = modeling_llama.LlamaRMSNorm(8)
    assert [module for module, _ in lean_forwards(nn.ModuleList([Gated(8), plain]))] == [plain]


def test_gradients_by_finite_differences() -> None:
    """In fp64, where the functions themselves work as well; an activation may be the identity."""
    draws = torch.Generator().manual_seed(0)
    x, gate, up, scale, weight, bias = (
        torch.randn(shape, generator=draws, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 3, 4), (5, 6), (5, 6), (4,), (3, 6), (3,))
    )
    assert torch.autograd.gradcheck(lambda x, w: _Norm.apply(x, w, 1e-2), (x, scale))
    for act in (nn.SiLU(), nn.Identity(), nn.GELU("tanh")):
        assert torch.autograd.gradcheck(lambda *inputs, act=act: _Down.apply(*inputs, act), (gate, up, weight, bias))
