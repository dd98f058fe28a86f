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

from grpokit.builtin.objectives import BNPO, CISPO, LUSPO, SAPO, VESPO
from grpokit.errors import UsageError
from grpokit.objectives import DAPO, GRPO, GSPO, DrGRPO, Objective
from grpokit.types import Decisions
from grpokit_hf.cpu import products
from grpokit_hf.tokens.fused_head import FusedHead
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
@pytest.mark.parametrize("prediction", ["none", "right", "up to a factor", "wrong"])
@pytest.mark.parametrize("entropy", ["no", "value", "grad"])
def test_equals_the_dense_computation(library: str, setting: str, prediction: str, entropy: str) -> None:
    p = problem()
    ours, theirs = SETTINGS[setting]
    predicted = {"up to a factor": 128 * p.slope, "wrong": p.slope.flip(0)}.get(prediction, p.slope)
    slope = None if prediction == "none" else lambda logprobs, start: predicted[start : start + len(logprobs)]
    logprobs, entropies = head(
        p.hidden, p.targets, p.weight, **{"bias": p.bias, **ours}, entropy=entropy, slope=slope, chunk=CHUNK
    )
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
    ("prediction", "frozen", "entropy", "expected"),
    [
        ("none", False, "no", 4),
        ("none", False, "value", 4),
        ("none", False, "grad", 4),
        ("right", False, "no", 3),
        ("right", False, "value", 3),
        ("up to a factor", False, "value", 3),
        ("all zero", False, "no", 3),
        ("off by 2e-5", False, "no", 6),
        ("none", True, "no", 3),
        ("right", True, "value", 2),
    ],
)
def test_matrix_products_per_chunk(library: str, prediction: str, frozen: bool, entropy: str, expected: int) -> None:
    """Three with a right prediction, four without; a frozen weight saves one, and the entropy costs none."""
    p = problem(2 * CHUNK)
    p.weight.requires_grad_(not frozen)
    p.slope *= prediction != "all zero"  # a group without spread
    off = torch.zeros_like(p.slope).index_fill(0, torch.tensor([3]), 2e-5 * p.slope.abs().amax())
    predicted = {"up to a factor": -3 * p.slope, "off by 2e-5": p.slope + off}.get(prediction, p.slope)
    slope = None if prediction == "none" else lambda logprobs, start: predicted[start : start + len(logprobs)]
    with Watched() as watched:
        logprobs, _ = head(p.hidden, p.targets, p.weight, entropy=entropy, slope=slope, chunk=CHUNK)
        (logprobs * p.slope).sum().backward()
    assert len(watched.products) == 2 * expected
    assert (p.weight.grad is None) == frozen


@pytest.mark.parametrize(
    ("predicted", "entropy", "most"),
    [
        pytest.param(False, "no", 1, marks=pytest.mark.long),
        pytest.param(False, "value", 2, marks=pytest.mark.long),
        (True, "value", 1),
    ],
)
def test_never_holds_more_logits_than_a_chunk(predicted: bool, entropy: str, most: int) -> None:
    p = problem(4000)
    slope = (lambda logprobs, start: p.slope[start : start + len(logprobs)]) if predicted else None
    with Watched() as watched:
        logprobs, _ = head(p.hidden, p.targets, p.weight, p.bias, entropy=entropy, slope=slope, chunk=CHUNK)
        (logprobs * p.slope).sum().backward()
    assert watched.largest == 4000 * H  # the hidden states, not the 4000 * V logits
    assert watched.most_logits == most  # without a prediction the entropy needs logits and probabilities together


def test_without_gradient_it_is_one_product_and_keeps_nothing() -> None:
    p = problem(CHUNK)
    with torch.no_grad(), Watched() as watched:
        logprobs, _ = head(p.hidden, p.targets, p.weight, entropy="value", slope=lambda *_: pytest.fail("was asked"))
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


ROWS = (14, 3, 9, 1, 23)  # decisions of each row, N in all


@pytest.mark.parametrize(
    "objective", [GRPO, DAPO, DrGRPO, BNPO, GSPO, LUSPO, CISPO, SAPO, VESPO], ids=lambda kind: kind.__name__
)
def test_predicts_the_slope_of_every_objective(objective: type[Objective]) -> None:
    """Off-policy with KL: the dense gradient, in three products per chunk, which hold whole rows if the loss does."""
    p, maths = problem(), objective(kl_coef=0.1)
    draws = torch.Generator().manual_seed(5)
    now = dense(p)[0].detach().float()
    old, reference = (now + 0.2 * torch.randn(N, generator=draws) for _ in range(2))
    weights, row = torch.rand(N, generator=draws), torch.arange(5).repeat_interleave(torch.tensor(ROWS))
    advantages = torch.randn(5, generator=draws)[row]
    starts = []

    def loss(logprobs: Tensor, start: int) -> Tensor:
        """Of the tokens from `start` on."""
        here = slice(start, start + len(logprobs))
        lengths = row[here].unique_consecutive(return_counts=True)[1].tolist()

        def grid(x: Tensor) -> Tensor:  # [n] -> [b, t]
            return torch.nn.utils.rnn.pad_sequence(x.split(lengths), batch_first=True)

        new, before, base = (Decisions(logprobs=grid(x)) for x in (logprobs, old[here], reference[here]))
        value = maths(new, before, grid(advantages[here]), grid(weights[here]) > 0, base).value
        return (value * grid(weights[here])).sum()

    def slope(logprobs: Tensor, start: int) -> Tensor:
        starts.append(start)
        leaf = logprobs.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(loss(leaf, start), leaf)[0]

    ends = [sum(ROWS[: i + 1]) for i in range(5)] if maths.whole_sequence else None
    with Watched() as watched:
        logprobs, _ = head(p.hidden, p.targets, p.weight, p.bias, slope=slope, ends=ends, chunk=CHUNK)
        loss(logprobs, 0).backward()
    assert starts == ([0, 14, 27] if maths.whole_sequence else [0, 16, 32, 48])
    assert len(watched.products) == 3 * len(starts)
    gradients = p.gradients()
    loss(dense(p)[0].float(), 0).backward()
    for gradient, expected in zip(gradients, p.gradients(), strict=True):
        close(gradient, expected, relative=1e-4)


def test_a_row_too_long_to_predict_as_a_whole_is_not_predicted() -> None:
    p = problem()
    options = {"slope": lambda *_: pytest.fail("was asked"), "ends": [2, N], "chunk": 5}
    logprobs, _ = head(p.hidden, p.targets, p.weight, p.bias, **options)
    torch.testing.assert_close(logprobs.double(), dense(p)[0], rtol=1e-5, atol=1e-5)


def test_rows_that_are_not_predicted_do_not_widen_a_chunk() -> None:
    p = problem()
    with Watched() as watched:
        logprobs, _ = head(p.hidden, p.targets, p.weight, ends=[2, N], chunk=10)
        logprobs.sum().backward()
    assert watched.largest == max(10 * V, V * H)  # not (N - 2) * V


@pytest.mark.parametrize("factor", [0.0, float("nan")])
def test_slopes_of_zero_and_nan(factor: float) -> None:
    p = problem()
    logprobs, _ = head(p.hidden, p.targets, p.weight, slope=lambda logprobs, start: p.slope[start:][: len(logprobs)])
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


@pytest.mark.parametrize("predicted", [False, True])
def test_gradients_of_a_bf16_weight_add_up_in_fp32(predicted: bool) -> None:
    """200 chunks: added up in bf16 the error would be 3e-2."""
    p = problem(200, dtype=torch.bfloat16)
    slope = (lambda logprobs, start: p.slope[start : start + len(logprobs)]) if predicted else None
    logprobs, _ = head(p.hidden, p.targets, p.weight, slope=slope, chunk=1)
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
        ({"ends": [20, 10, 50]}, "ends must ascend to 50"),
        ({"ends": [20]}, "ends must ascend to 50"),
        ({"slope": lambda logprobs, start: logprobs[1:]}, r"slope must return one number per token, \(50,\)"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    p = problem()
    with pytest.raises(UsageError, match=message):
        head(**{"hidden": p.hidden, "targets": p.targets, "weight": p.weight, **change})


@pytest.mark.parametrize("ends", [None, []])
def test_no_tokens_have_no_gradient(ends: list[int] | None) -> None:
    hidden = torch.zeros(0, 4, requires_grad=True)
    logprobs, _ = FusedHead()(
        hidden, torch.zeros(0, dtype=torch.int64), torch.randn(9, 4), slope=lambda x, _: x, ends=ends
    )
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.shape == (0, 4)
