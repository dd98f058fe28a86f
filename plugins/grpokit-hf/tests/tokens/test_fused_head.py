"""The fused head against the dense computation: values, gradients, matrix products and memory."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grpokit.errors import UsageError
from grpokit_hf.cpu import products
from grpokit_hf.tokens.fused_head import FusedHead, fused_kl
from grpokit_hf.tokens.truncation import packed

N, V, H, CHUNK = 50, 203, 24, 16
PRODUCTS = ("mm", "addmm", "addmm_", "_linear_pointwise")
head = FusedHead()


class Watched(TorchDispatchMode):
    """Records matrix products, the largest tensor, and the most tensors of a chunk's logits at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[torch.dtype] = []
        self.largest = self.most_logits = 0
        self._logits: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        self.largest = max(self.largest, *(x.numel() for x in tensors), 0)
        self._logits += [weakref.ref(x) for x in tensors if x.shape == (CHUNK, V)]
        alive = {x.data_ptr() for x in (ref() for ref in self._logits) if x is not None}
        self.most_logits = max(self.most_logits, len(alive))
        if func.overloadpacket.__name__ in PRODUCTS:
            self.products.append(args[0].dtype)
        return out


@dataclass
class Problem:
    hidden: Tensor
    weight: Tensor
    bias: Tensor
    targets: Tensor
    slope: Tensor

    @property
    def leaves(self) -> list[Tensor]:
        return [self.hidden, self.weight, self.bias]

    def gradients(self) -> list[Tensor]:
        grads = [x.grad for x in self.leaves if x.grad is not None]
        for x in self.leaves:
            x.grad = None
        return grads


def problem(n: int = N, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Problem:
    draws = torch.Generator().manual_seed(seed)
    hidden, weight, bias = (torch.randn(shape, generator=draws) for shape in ((n, H), (V, H), (V,)))
    return Problem(
        hidden=hidden.to(dtype).requires_grad_(),
        weight=(0.5 * weight).to(dtype).requires_grad_(),
        bias=bias.to(dtype).requires_grad_(),
        targets=torch.randint(V - 8, (n,), generator=draws),
        slope=torch.randn(n, generator=draws) / n,
    )


def dense(p: Problem, *, bias=True, scale=1.0, softcap=None, keep=None) -> tuple[Tensor, Tensor]:
    """Log-probs and entropy in fp64."""
    logits = p.hidden.double() @ p.weight.double().T + (p.bias.double() if bias else 0)
    logits = (logits if softcap is None else softcap * (logits / softcap).tanh()) * scale
    logprobs = (logits if keep is None else logits.masked_fill(~keep, -1e9)).log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, p.targets[:, None])[:, 0], entropy


def close(actual: Tensor, expected: Tensor, *, relative: float) -> None:
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    assert error < relative, f"relative error {error:.1e}"


@pytest.fixture(params=["torch", "onednn"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to multiply, whatever this machine prefers."""
    monkeypatch.setattr(products, "_wide_vectors", lambda: request.param == "onednn")
    return request.param


FORBIDDEN = torch.arange(V) >= V - 8
KEEP = (torch.rand(N, V, generator=torch.Generator().manual_seed(1)) < 0.3).scatter(1, problem().targets[:, None], True)
SETTINGS = {
    "plain": ({}, {}),
    "no bias": ({"bias": None}, {"bias": False}),
    "temperature": ({"scale": 1 / 0.7}, {"scale": 1 / 0.7}),
    "softcap": ({"softcap": 3.0, "scale": 1.25}, {"softcap": 3.0, "scale": 1.25}),
    "forbidden": ({"forbidden": FORBIDDEN}, {"keep": ~FORBIDDEN}),
    "kept": ({"kept": packed(KEEP)}, {"keep": KEEP}),
    "all": (
        {"softcap": 5.0, "scale": 0.8, "kept": packed(KEEP), "forbidden": FORBIDDEN},
        {"softcap": 5.0, "scale": 0.8, "keep": KEEP & ~FORBIDDEN},
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("entropy", ["no", "value", "grad"])
def test_equals_the_dense_computation(library: str, setting: str, entropy: str) -> None:
    p = problem()
    ours, theirs = SETTINGS[setting]
    logprobs, entropies = head(p.hidden, p.targets, p.weight, **{"bias": p.bias, **ours}, entropy=entropy, chunk=CHUNK)
    expected_logprobs, expected_entropies = dense(p, **theirs)
    torch.testing.assert_close(logprobs.double(), expected_logprobs, rtol=1e-5, atol=1e-5)
    assert logprobs.dtype == torch.float32
    loss, expected_loss = (logprobs * p.slope).sum(), (expected_logprobs * p.slope).sum()
    if entropy == "no":
        assert entropies is None
    else:
        torch.testing.assert_close(entropies.double(), expected_entropies, rtol=1e-5, atol=1e-5)
        assert entropies.requires_grad == (entropy == "grad")
    if entropy == "grad":
        bonus = torch.linspace(-1, 1, N)
        loss, expected_loss = loss + (bonus * entropies).sum(), expected_loss + (bonus * expected_entropies).sum()
    loss.backward()
    gradients = p.gradients()
    expected_loss.backward()
    for gradient, expected in zip(gradients, p.gradients(), strict=True):
        close(gradient, expected, relative=1e-5)


@pytest.mark.parametrize(
    ("frozen", "entropy", "expected"),
    [(False, "no", 4), (False, "value", 4), (False, "grad", 4), (True, "no", 3)],
)
def test_matrix_products_per_chunk(library: str, frozen: bool, entropy: str, expected: int) -> None:
    """Four; a frozen weight saves one, and the entropy costs none."""
    p = problem(2 * CHUNK)
    p.weight.requires_grad_(not frozen)
    with Watched() as watched:
        logprobs, _ = head(p.hidden, p.targets, p.weight, entropy=entropy, chunk=CHUNK)
        (logprobs * p.slope).sum().backward()
    assert len(watched.products) == 2 * expected
    assert (p.weight.grad is None) == frozen


@pytest.mark.parametrize(
    ("entropy", "most"),
    [pytest.param("no", 1, marks=pytest.mark.slow), ("value", 2)],
)
def test_never_holds_more_logits_than_a_chunk(entropy: str, most: int) -> None:
    p = problem(4000)
    with Watched() as watched:
        logprobs, _ = head(p.hidden, p.targets, p.weight, p.bias, entropy=entropy, chunk=CHUNK)
        (logprobs * p.slope).sum().backward()
    assert watched.largest == 4000 * H  # the hidden states, not the 4000 * V logits
    assert watched.most_logits == most  # the entropy needs logits and probabilities together


def test_without_gradient_it_is_one_product_and_keeps_nothing() -> None:
    p = problem(CHUNK)
    with torch.no_grad(), Watched() as watched:
        logprobs, _ = head(p.hidden, p.targets, p.weight, entropy="value")
    assert len(watched.products) == 1
    assert logprobs.grad_fn is None


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradients_by_finite_differences(softcap: float | None) -> None:
    draws = torch.Generator().manual_seed(3)
    shapes = ((5, 3), (11, 3), (11,))
    leaves = tuple(torch.randn(s, generator=draws, dtype=torch.float64).requires_grad_() for s in shapes)
    targets, keep = torch.tensor([0, 3, 9, 3, 10]), torch.ones(5, 11, dtype=torch.bool)
    keep[:, 5:8] = False

    def both(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        options = {"scale": 1.3, "softcap": softcap, "kept": packed(keep), "chunk": 2}
        return head(hidden, targets, weight, bias, entropy="grad", **options)

    assert torch.autograd.gradcheck(both, leaves)


@pytest.mark.parametrize("factor", [0.0, float("nan")])
def test_slopes_of_zero_and_nan(factor: float) -> None:
    p = problem()
    logprobs, _ = head(p.hidden, p.targets, p.weight)
    (logprobs * p.slope * factor).sum().backward()
    for gradient in p.gradients():
        torch.testing.assert_close(gradient, torch.full_like(gradient, factor), equal_nan=True)


def test_no_tokens_at_all() -> None:
    p = problem(0)
    logprobs, entropy = head(p.hidden, p.targets, p.weight, p.bias, entropy="value")
    logprobs.sum().backward()
    assert logprobs.shape == entropy.shape == (0,)
    assert [x.abs().sum().item() for x in p.gradients()] == [0, 0, 0]


def test_autocast_multiplies_in_its_dtype_and_keeps_softmax_and_gradients_in_fp32() -> None:
    p = problem()
    with Watched() as watched, torch.autocast("cpu", dtype=torch.bfloat16):
        logprobs, entropy = head(p.hidden, p.targets, p.weight, p.bias, entropy="value", chunk=CHUNK)
        (logprobs * p.slope).sum().backward()
    assert set(watched.products) == {torch.bfloat16}
    expected_logprobs, expected_entropy = dense(p)
    for x, expected in ((logprobs, expected_logprobs), (entropy, expected_entropy)):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x.double(), expected, rtol=0, atol=0.1)
    gradients = p.gradients()
    (expected_logprobs * p.slope).sum().backward()
    for gradient, expected in zip(gradients, p.gradients(), strict=True):
        assert gradient.dtype == torch.float32
        close(gradient, expected, relative=2e-2)


def test_gradients_of_a_bf16_weight_add_up_in_fp32() -> None:
    """200 chunks: added up in bf16 the error would be 3e-2."""
    p = problem(200, dtype=torch.bfloat16)
    logprobs, _ = head(p.hidden, p.targets, p.weight, chunk=1)
    (logprobs * p.slope).sum().backward()
    gradient = p.gradients()[1]
    assert gradient.dtype == torch.bfloat16
    (dense(p, bias=False)[0] * p.slope).sum().backward()
    close(gradient, p.gradients()[1], relative=5e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": torch.zeros(3, dtype=torch.int64)}, r"got \(50, 24\), \(3,\) and \(203, 24\)"),
        ({"weight": torch.zeros(V, 5)}, r"hidden \[N, H\]"),
        ({"bias": torch.zeros(3)}, r"bias must have one entry per token, \[203\]; got \(3,\)"),
        ({"forbidden": torch.zeros(3, dtype=torch.bool)}, "forbidden must have one entry per token"),
        (
            {"kept": torch.zeros(N, 3, dtype=torch.uint8)},
            r"\[50, 26\] uint8.* got \(50, 3\) torch.uint8",
        ),
        ({"entropy": "yes"}, "entropy must be 'no', 'value' or 'grad', got 'yes'"),
        ({"scale": 0.0}, "scale must be a finite number above 0, got 0.0"),
        ({"softcap": -1.0}, "softcap must be a finite number above 0, got -1.0"),
        ({"chunk": 0}, "chunk must be at least 1 token, got 0"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    p = problem()
    with pytest.raises(UsageError, match=message):
        head(**{"hidden": p.hidden, "targets": p.targets, "weight": p.weight, **change})


def test_no_tokens_have_no_gradient() -> None:
    hidden = torch.zeros(0, 4, requires_grad=True)
    logprobs, _ = FusedHead()(hidden, torch.zeros(0, dtype=torch.int64), torch.randn(9, 4))
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.shape == (0, 4)


@pytest.mark.parametrize(("given", "reference"), SETTINGS.values(), ids=SETTINGS)
def test_the_kl_of_two_hidden_states(given: dict[str, Any], reference: dict[str, Any], library: str) -> None:
    """Value and gradients are those of the dense computation in fp64; the others get none."""
    own, other = problem(), problem(seed=4)
    bias = given.get("bias", own.bias)
    settings = {name: x for name, x in given.items() if name != "bias"}
    kl = fused_kl(own.hidden, other.hidden, own.weight, bias, chunk=CHUNK, **settings)
    (kl * own.slope).sum().backward()
    fused = own.gradients()
    assert other.hidden.grad is None

    def logprobs(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        logits = hidden.double() @ weight.double().T + (bias.double() if reference.get("bias", True) else 0)
        cap, keep = reference.get("softcap"), reference.get("keep")
        logits = (logits if cap is None else cap * (logits / cap).tanh()) * reference.get("scale", 1.0)
        return (logits if keep is None else logits.masked_fill(~keep, -1e9)).log_softmax(-1)

    p = logprobs(own.hidden, own.weight, own.bias)
    q = logprobs(other.hidden, own.weight.detach(), own.bias.detach())
    expected = (p.exp() * (p - q)).sum(-1)
    (expected * own.slope.double()).sum().backward()
    close(kl, expected, relative=1e-5)
    for x, y in zip(fused, own.gradients(), strict=False):
        close(x, y, relative=1e-5)
