"""Objectives against the golden table, hand-computed cases, and properties."""

from __future__ import annotations

import inspect
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import noised_copies
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpokit import Decisions, UsageError, objectives
from grpokit.builtin.entropy_filter import top_entropy
from grpokit.builtin.more_objectives import CISPO, DPPO, NFT, VESPO
from grpokit.divergence import kl_divergence, log_ratio
from grpokit.flow import flow_sde, gaussian_logprobs, score
from grpokit.objectives import GRPO, reduction_weights
from grpokit.processes.team import Team
from tiny_policies import OBJECTIVES_BY_NAME

GOLDEN = json.loads((Path(__file__).parent / "golden/losses.json").read_text())
FIXTURE = GOLDEN["fixture"]
NEW, OLD, REF, ADVANTAGES = (torch.tensor(FIXTURE[k]).double() for k in ("new", "old", "ref", "advantages"))
MASK = torch.tensor(FIXTURE["mask"]).bool()


def weighted(mask: torch.Tensor, reduction: str, max_decisions: int) -> torch.Tensor:
    """The weights of a batch in a single process."""
    return reduction_weights(mask, reduction, rows=len(mask), decisions=int(mask.sum()), max_decisions=max_decisions)


def build(case: dict) -> objectives.Objective:
    """A golden case's objective: TRL's names for options -> ours."""
    kind = OBJECTIVES_BY_NAME[case["loss"]]
    options = {k: case[k] for k in inspect.signature(kind).parameters if k in case}
    if case["loss"] == "cispo":
        options["ratio_cap"] = case["epsilon_high"]
    elif issubclass(kind, GRPO):
        options |= {"clip_range": FIXTURE["epsilon"], "clip_range_high": case.get("epsilon_high")}
    return kind(**options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: c["id"])
def test_golden(case: dict, dtype: torch.dtype) -> None:
    objective = build(case)
    new = NEW.to(dtype, copy=True).requires_grad_()
    old = new.detach() if "old" in case else OLD.to(dtype)
    advantages = torch.tensor(case.get("advantages", FIXTURE["advantages"])).double()
    if "entropy" in case:
        kept = top_entropy(torch.tensor(case["entropy"]).double(), MASK, case["top_entropy_quantile"], Team())
        advantages = torch.where(kept, advantages[:, None], 0.0)
    found = objective(
        Decisions(logprobs=new), Decisions(logprobs=old), advantages, MASK, Decisions(logprobs=REF.to(dtype))
    )
    weights = weighted(MASK, objective.reduction, FIXTURE["max_length"]).to(dtype)
    loss = (found.value * weights).sum()
    loss.backward()
    assert loss.item() == pytest.approx(case["expect"], abs=1e-5)
    if "grad" in case:
        assert new.grad.flatten().tolist() == pytest.approx(torch.tensor(case["grad"]).flatten().tolist(), abs=1e-5)
    if "kl_mean" in case:
        assert found.stats["kl"][MASK].mean().item() == pytest.approx(case["kl_mean"], abs=1e-5)


def test_golden_clip_fractions() -> None:
    stats = GRPO()(Decisions(logprobs=NEW), Decisions(logprobs=OLD), ADVANTAGES, MASK).stats
    want = GOLDEN["meta"]["clip_fractions"]
    low, high = (stats[name][MASK].double().mean().item() for name in ("clip_low", "clip_high"))
    assert (low, high, low + high) == pytest.approx((want["low"], want["high"], want["total"]), abs=1e-6)


def surrogate(ratio: float, advantage: float, **options: float) -> tuple[float, float]:
    """Value and derivative by the log-prob of `clipped` at one decision."""
    new = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    old = Decisions(logprobs=torch.zeros_like(new))
    advantages, mask = torch.tensor([[advantage]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    value = GRPO(**options)(Decisions(logprobs=new), old, advantages, mask).value.sum()
    value.backward()
    return value.item(), new.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (1.1, 2.0, -2.2, -2.2),  # inside: -r A
        (1.5, 2.0, -2.4, 0.0),  # A > 0, ratio above: clipped at 1.2
        (0.5, 2.0, -1.0, -1.0),  # A > 0, ratio below: the smaller gain counts, with its gradient
        (0.5, -2.0, 1.6, 0.0),  # A < 0, ratio below: clipped at 0.8
        (1.5, -2.0, 3.0, 3.0),  # A < 0, ratio above: the larger loss counts (pessimism)
    ],
)
def test_ppo_clip_by_hand(ratio: float, advantage: float, value: float, slope: float) -> None:
    assert surrogate(ratio, advantage) == pytest.approx((value, slope))


def test_dual_clip_by_hand() -> None:
    # A = -2: without dual clip the loss at r = 5 is 10; with c = 3 it is 6, and flat there
    assert surrogate(5.0, -2.0) == pytest.approx((10.0, 10.0))
    assert surrogate(5.0, -2.0, dual_clip=3.0) == pytest.approx((6.0, 0.0))
    assert surrogate(2.0, -2.0, dual_clip=3.0) == pytest.approx((4.0, 4.0))
    assert surrogate(5.0, 2.0, dual_clip=3.0) == surrogate(5.0, 2.0)
    with pytest.raises(UsageError, match=r"dual_clip must be above 1, or None, got 0\.5\. dual_clip: c > 1"):
        surrogate(1.0, 1.0, dual_clip=0.5)


@pytest.mark.parametrize("ratio", [0.5, 0.79, 0.81, 1.1, 1.3, 3.9, 4.1, 20.0])
@pytest.mark.parametrize("advantage", [-2.0, 2.0])
def test_dual_clip_is_the_two_sided_clip(ratio: float, advantage: float) -> None:
    """INTELLECT-2: -min(min(r, delta) A, clip(r) A), with its value and its slope; delta = 4."""
    new = torch.tensor(math.log(ratio), dtype=torch.float64, requires_grad=True)
    r = new.exp()
    two_sided = -torch.minimum(r.clamp(max=4.0) * advantage, r.clamp(0.8, 1.2) * advantage)
    two_sided.backward()
    assert surrogate(ratio, advantage, dual_clip=4.0) == pytest.approx((two_sided.item(), new.grad.item()))


def test_cispo_cap_keeps_a_gradient() -> None:
    # r = e^2 = 7.39 is cut to 5, but the decision keeps the slope -5 A
    new = torch.tensor([[-1.0]], dtype=torch.float64, requires_grad=True)
    found = CISPO(ratio_cap=5.0)(
        Decisions(logprobs=new),
        Decisions(logprobs=new.detach() - 2),
        torch.tensor([0.5]).double(),
        torch.ones(1, 1).bool(),
    )
    found.value.sum().backward()
    assert (found.value.item(), new.grad.item()) == pytest.approx((5 * 0.5 * 1.0, -2.5))


def test_vespo_by_hand() -> None:
    # ratios 1.5 and 0.8 make w = 1.2: phi = 1.2^2 e^(3 (1 - 1.2)) for A > 0, and 1.2^3 e^(2 (1 - 1.2)) for A < 0
    new = torch.full((2, 3), -1.0, dtype=torch.float64, requires_grad=True)
    old = new.detach() - torch.tensor([1.5, 0.8, 7.0]).double().log()
    mask = torch.tensor([[True, True, False]] * 2)
    loss = VESPO()(Decisions(logprobs=new), Decisions(logprobs=old), torch.tensor([0.5, -0.5]).double(), mask)
    loss.value.sum().backward()
    slopes = [-0.5 * 1.44 * math.exp(-0.6), 0.5 * 1.728 * math.exp(-0.4)]
    assert torch.allclose(new.grad, torch.tensor([[x, x, 0] for x in slopes]).double(), rtol=1e-12)
    assert torch.allclose(loss.value, -new.grad, rtol=1e-12)  # times log p = -1
    assert loss.stats["vespo/phi_mean"][:, 0].tolist() == pytest.approx([-2 * slopes[0], 2 * slopes[1]])
    assert VESPO().whole_sequence


def test_vespo_stays_finite_where_a_row_has_become_impossible_or_certain() -> None:
    new = Decisions(logprobs=torch.zeros(2, 40))
    old = Decisions(logprobs=torch.tensor([[19.0] * 40, [-19.0] * 40]))  # log w = -760, 760
    for advantage in (1.0, -1.0):
        phi = VESPO()(new, old, torch.full((2,), advantage), torch.ones(2, 40).bool()).stats["vespo/phi_mean"]
        assert phi.isfinite().all()
        assert phi.max() < 1e-13


def test_sapo_by_hand_in_fp64() -> None:
    # r = 1.3: -(4 / tau) sigmoid(0.3 tau) A with tau 1.1 where A > 0 and 1.05 elsewhere; neither is a number of fp32
    new, a = torch.full((1, 2), math.log(1.3), dtype=torch.float64), torch.tensor([[0.7, -0.7]], dtype=torch.float64)
    old, mask = Decisions(logprobs=torch.zeros_like(new)), torch.ones(1, 2).bool()
    value = OBJECTIVES_BY_NAME["sapo"](tau_pos=1.1, tau_neg=1.05)(Decisions(logprobs=new), old, a, mask).value
    expected = [-4 / tau / (1 + math.exp(-0.3 * tau)) * x for tau, x in ((1.1, 0.7), (1.05, -0.7))]
    assert value.tolist() == [pytest.approx(expected, rel=1e-14)]


DEFAULTS = {
    # (ratio, advantage) -> loss, and whether the clip acts, beside the edges of the ranges that the papers give
    "grpo": [(1.25, 1, -1.2, True), (0.75, -1, 0.8, True)],
    "dapo": [(1.25, 1, -1.25, False), (1.3, 1, -1.28, True), (0.75, -1, 0.8, True)],
    "dr_grpo": [(1.25, 1, -1.2, True), (0.75, -1, 0.8, True)],
    "bnpo": [(1.25, 1, -1.2, True), (0.75, -1, 0.8, True)],
    "gspo": [(1.00035, 1, -1.00035, False), (1.1, 1, -1.0004, True), (0.9, -1, 0.9997, True)],
    "luspo": [(1.00035, 1, -1.00035, False), (1.1, 1, -1.0004, True), (0.9, -1, 0.9997, True)],
    "cispo": [(4.9, 1, 4.9, False), (5.1, 1, 5.0, True)],  # times -A log p, and log p is -1
    "sapo": [(2, 1, -4 / (1 + math.exp(-1)), False), (2, -1, 4 / 1.05 / (1 + math.exp(-1.05)), False)],
    "vespo": [(2, 1, 4 * math.exp(-3), False), (2, -1, -8 * math.exp(-2), False)],  # times -A log p
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_published_defaults(name: str) -> None:
    objective = OBJECTIVES_BY_NAME[name]()
    new = Decisions(logprobs=torch.full((1, 1), -1.0, dtype=torch.float64))
    for ratio, advantage, expected, clips in DEFAULTS[name]:
        old = Decisions(logprobs=new.logprobs - math.log(ratio))
        loss = objective(new, old, torch.tensor([advantage]).double(), torch.ones(1, 1).bool())
        assert loss.value.item() == pytest.approx(expected, rel=1e-12)
        assert bool(loss.stats["clip_low"] | loss.stats["clip_high"]) == clips
    reduction = {
        "token_mean": {"dapo", "bnpo", "cispo", "vespo"},
        "fixed_length": {"dr_grpo"},
        "sequence_sum": {"luspo"},
        "sequence_mean": {"grpo", "gspo", "sapo"},
    }
    assert name in reduction[objective.reduction]


OTHER = {
    "ratio": "sequence",
    "clip_range": 0.05,
    "clip_range_high": 0.7,
    "dual_clip": 1.1,
    "ratio_cap": 1.1,
    "tau_pos": 2.0,
    "tau_neg": 3.0,
    "k_pos": 1.0,
    "lambda_pos": 1.5,
    "k_neg": 1.0,
    "lambda_neg": 1.5,
    "kl_bias_correction": True,
    "off_policy_mask_threshold": 0.05,
    "reduction": "fixed_length",
    "kl": "k1",
    "kl_coef": 0.3,
    "entropy_coef": 0.2,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_keyword_of_an_objective_changes_its_loss(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    new, old, ref = (-torch.rand(3, 12, 4, generator=generator, dtype=torch.float64) * 2).unbind()
    entropy, a = torch.full_like(new, 0.7), torch.tensor([1.0, -1, 2, -2, 0.5, -0.5] * 2).double()
    mask = torch.arange(4) < torch.tensor([4, 3, 2, 4, 1, 4] * 2)[:, None]

    def loss(**options: Any) -> float:
        objective = OBJECTIVES_BY_NAME[name](**{"kl_coef": 0.1, **options})
        found = objective(
            Decisions(logprobs=new, entropy=entropy), Decisions(logprobs=old), a, mask, Decisions(logprobs=ref)
        )
        return float((found.value * weighted(mask, objective.reduction, 9)).sum())

    for keyword in inspect.signature(OBJECTIVES_BY_NAME[name]).parameters:
        assert abs(loss(**{keyword: OTHER[keyword]}) - loss()) > 1e-6, keyword


@pytest.mark.parametrize(
    ("kind", "value", "slope"),
    # d = ref - new = ln 2: k1 = -d, k2 = d^2 / 2, k3 = e^d - d - 1; slopes by new: 1, -d, 1 - e^d
    [
        ("k1", -math.log(2), 1.0),
        ("k2", math.log(2) ** 2 / 2, -math.log(2)),
        ("k3", 1 - math.log(2), -1.0),
    ],
)
def test_kl_estimators_by_hand(kind: str, value: float, slope: float) -> None:
    new = torch.tensor([[-2.0]], dtype=torch.float64, requires_grad=True)
    kl = kl_divergence(
        Decisions(logprobs=new), Decisions(logprobs=new.detach() + math.log(2)), torch.ones(1, 1).bool(), kind
    )
    kl.sum().backward()
    assert (kl.item(), new.grad.item()) == pytest.approx((value, slope))


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_a_bias_corrected_kl_by_hand(kind: str) -> None:
    """The ratio is 2: value 2 f, and slope 2 (f' + f), since the ratio has a gradient too."""
    values = {"k1": (-math.log(3), 1.0), "k2": (math.log(3) ** 2 / 2, -math.log(3)), "k3": (2 - math.log(3), -2.0)}
    value, slope = values[kind]  # with d = ref - new = ln 3
    new = torch.tensor([[-2.0]], dtype=torch.float64, requires_grad=True)
    old, ref = (Decisions(logprobs=new.detach() + shift) for shift in (-math.log(2), math.log(3)))
    objective = GRPO(kl=kind, kl_coef=1.0, kl_bias_correction=True)
    loss = objective(Decisions(logprobs=new), old, torch.zeros(1).double(), torch.ones(1, 1).bool(), ref)
    loss.value.sum().backward()
    assert (loss.value.item(), new.grad.item()) == pytest.approx((2 * value, 2 * (slope + value)))


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_the_gradient_of_a_bias_corrected_kl_is_the_true_one(kind: str) -> None:
    """All outcomes of one decision between three tokens, drawn from the old policy."""
    logits = torch.tensor([0.3, -0.5, 1.1], dtype=torch.float64, requires_grad=True)
    old, ref = torch.tensor([0.0, 0.4, 0.2]).double().log_softmax(0), torch.tensor([1.0, 0, 0]).double().log_softmax(0)
    new = logits.log_softmax(0)
    (true,) = torch.autograd.grad((new.exp() * (new - ref)).sum(), logits, retain_graph=True)
    gradients = {}
    for correction in (True, False):
        objective = GRPO(kl=kind, kl_coef=1.0, kl_bias_correction=correction)
        views = (Decisions(logprobs=x[:, None]) for x in (new, old, ref))
        new_view, old_view, ref_view = views
        value = objective(new_view, old_view, torch.zeros(3).double(), torch.ones(3, 1).bool(), ref_view).value[:, 0]
        (gradients[correction],) = torch.autograd.grad((old.exp() * value).sum(), logits, retain_graph=True)
    assert torch.allclose(gradients[True], true, atol=1e-14)
    assert not torch.allclose(gradients[False], true, atol=1e-2)


def test_a_bias_correction_is_refused_where_the_ratio_is_of_one_dimension_of_many() -> None:
    with pytest.raises(UsageError, match="a decision has 64 dimensions, and the ratio is per dimension"):
        GRPO(kl="k1", kl_coef=0.1, kl_bias_correction=True).check_action_dims(64)
    with pytest.raises(UsageError, match="kl 'gaussian' is exact, so kl_bias_correction has nothing to correct"):
        GRPO(kl="gaussian", kl_bias_correction=True)
    with pytest.raises(UsageError, match="kl_bias_correction must be true or false, got 'no'"):
        GRPO(kl_bias_correction="no")
    GRPO(kl="k1", kl_bias_correction=True).check_action_dims(64)  # without a KL


def test_off_policy_mask_by_hand() -> None:
    # rows whose mean of old - new is 0.3, 0.3, 0.1: only the first has A < 0 and lies above 0.2
    old = torch.tensor([[-1.0, -1.0, 5.0], [-1.0, -1.0, 5.0], [-1.0, -1.0, -1.0]]).double()
    new = torch.tensor([[-1.2, -1.4, -9.0], [-1.2, -1.4, -9.0], [-1.1, -1.0, -1.2]]).double().requires_grad_()
    mask = torch.tensor([[True, True, False], [True, True, False], [True, True, True]])
    a = torch.tensor([-1.0, 1.0, -1.0]).double()
    views = Decisions(logprobs=new), Decisions(logprobs=old), a, mask, Decisions(logprobs=old)
    plain, masked = (GRPO(kl_coef=0.1, off_policy_mask_threshold=limit)(*views) for limit in (None, 0.2))
    kl_only = GRPO(kl_coef=0.1)(views[0], views[1], torch.zeros(3).double(), mask, views[4]).value
    assert torch.equal(masked.value, torch.where(torch.tensor([[True], [False], [False]]), kl_only, plain.value))
    assert masked.stats["off_policy_mask/mean"][mask].tolist() == [True] * 2 + [False] * 5
    assert GRPO(off_policy_mask_threshold=0.2).whole_sequence
    assert not GRPO().whole_sequence


def test_gaussian_kl_by_hand() -> None:
    # one decision of two dimensions, equal std 0.5: ((0.1)^2 + (0.3)^2) / 2 / (2 * 0.25) = 0.1; per dimension
    ones, std = torch.ones(1, 1), torch.full((1, 1, 1), 0.5)
    new = Decisions(logprobs=ones, mean=torch.tensor([[[0.1, 0.3]]]), std=std)
    ref = Decisions(logprobs=ones, mean=torch.zeros(1, 1, 2), std=std)
    assert kl_divergence(new, ref, ones.bool(), "gaussian").item() == pytest.approx(0.1)
    # unequal std, mean 0: log(1 / 0.5) + 0.25 / 2 - 0.5
    wide = Decisions(logprobs=ones, mean=torch.zeros(1, 1, 2), std=torch.ones(1, 1, 1))
    assert kl_divergence(ref, wide, ones.bool(), "gaussian").item() == pytest.approx(math.log(2) + 0.125 - 0.5)
    torch_says = torch.distributions.kl_divergence(
        torch.distributions.Normal(0.0, 0.5), torch.distributions.Normal(0.0, 1.0)
    )
    assert kl_divergence(ref, wide, ones.bool(), "gaussian").item() == pytest.approx(torch_says.item())


@pytest.mark.parametrize("std", [0.7, 0.3, 0.11])
def test_a_small_gaussian_kl_is_exact_too(std: float) -> None:
    """Of means that are 1e-5 standard deviations apart, as after a first small update; a KL is never negative."""
    mean, deviation = torch.randn(64, 1, 8, generator=torch.Generator().manual_seed(0)), torch.full((64, 1, 1), std)
    new, ref = (Decisions(logprobs=torch.ones(64, 1), mean=m, std=deviation) for m in (mean * 1e-5 * std, mean * 0))
    expected = (mean * 1e-5).double().square().mean(-1) / 2
    kl = kl_divergence(new, ref, torch.ones(64, 1).bool(), "gaussian")
    torch.testing.assert_close(kl, expected.float(), rtol=1e-5, atol=0)


def test_k2_and_k3_of_a_mean_over_dimensions_are_too_weak_by_their_number() -> None:
    """64 dimensions, all means 0.05 apart: a KL of 0.00125 per dimension."""
    generator = torch.Generator().manual_seed(0)
    mean, std = torch.zeros(4000, 1, 64, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64)
    x = torch.randn(mean.shape, generator=generator, dtype=torch.float64)
    new, ref = (Decisions(logprobs=gaussian_logprobs(x, m, std), mean=m, std=std) for m in (mean, mean + 0.05))
    mask = torch.ones(4000, 1, dtype=torch.bool)
    found = {kind: kl_divergence(new, ref, mask, kind).mean().item() for kind in ("gaussian", "k1", "k2", "k3")}
    assert found["gaussian"] == pytest.approx(0.05**2 / 2)
    assert found["k1"] == pytest.approx(0.05**2 / 2, rel=0.1)
    assert found["k2"] == pytest.approx(0.05**2 / 2 / 64, rel=0.1)
    assert found["k3"] == pytest.approx(0.05**2 / 2 / 64, rel=0.1)


def test_gaussian_kl_needs_moments() -> None:
    with pytest.raises(UsageError, match="Use k3"):
        kl_divergence(Decisions(logprobs=NEW), Decisions(logprobs=REF), MASK, "gaussian")


def test_per_dimension_ratio_of_gaussian_steps() -> None:
    # mean over 4 dimensions: shifting the mean by 0.1 at x - mean = 0.2, std 0.5 changes each dimension's log-density
    # by (0.2^2 - 0.1^2) / (2 * 0.25) = 0.06, and so the step's, whatever its number of dimensions
    x = torch.full((1, 1, 2, 2), 0.2)
    std = torch.full((1, 1, 1, 1), 0.5)
    old = gaussian_logprobs(x, torch.zeros(1, 1, 2, 2), std)
    new = gaussian_logprobs(x, torch.full((1, 1, 2, 2), 0.1), std)
    normal = torch.distributions.Normal(0.0, 0.5).log_prob(torch.tensor(0.2))
    assert old.item() == pytest.approx(normal.item(), abs=1e-6)
    ratio = log_ratio(Decisions(logprobs=new), Decisions(logprobs=old), torch.ones(1, 1).bool()).exp()
    assert ratio.item() == pytest.approx(math.exp(0.06), abs=1e-6)


def gaussians(mean: torch.Tensor, std: float, x: torch.Tensor) -> Decisions:
    deviation = torch.full_like(mean[:, :, :1], std)
    return Decisions(logprobs=gaussian_logprobs(x, mean, deviation), mean=mean, std=deviation)


def test_guarded_ratio_by_hand() -> None:
    """Two dimensions, std 0.5, x = (0.3, -0.1): the log-ratio is the mean of e (m_new - m_old), e = x / 0.5."""
    x, old_mean = torch.tensor([[[0.3, -0.1]]]).double(), torch.zeros(1, 1, 2, dtype=torch.float64)
    mean = torch.tensor([[[0.2, 0.4]]], dtype=torch.float64, requires_grad=True)
    new, old = gaussians(mean, 0.5, x), gaussians(old_mean, 0.5, x)
    guarded = log_ratio(new, old, torch.ones(1, 1).bool(), "guard")
    assert guarded.item() == pytest.approx((0.6 * 0.2 - 0.2 * 0.4) / 2)
    # and by the paper's formula: dlogp = mean(0.3^2 - 0.1^2, 0.1^2 - 0.5^2) / 0.5 and d = 0.1, so 0.5 (dlogp + 0.2)
    assert guarded.item() == pytest.approx(0.5 * ((0.08 - 0.24) / 2 / 0.5 + 0.2))
    loss = GRPO(ratio="guard")(new, old, torch.tensor([2.0]).double(), torch.ones(1, 1).bool())
    loss.value.sum().backward()
    assert loss.value.item() == pytest.approx(-2 * math.exp(0.02))
    # the slope of e (m_new - m_old) / 2 by the mean is e / 2
    assert mean.grad.flatten().tolist() == pytest.approx([-2 * math.exp(0.02) * e / 2 for e in (0.6, -0.2)])


@pytest.mark.parametrize("std", [0.1, 0.5])
def test_the_guarded_ratio_stays_at_1_where_the_plain_one_drifts(std: float) -> None:
    """All means 0.5 std away: the plain log-ratio is -1/8 on average, in 64 dimensions that hardly spread."""
    generator = torch.Generator().manual_seed(0)
    old_mean = torch.randn(4000, 1, 64, generator=generator, dtype=torch.float64)
    x = old_mean + std * torch.randn(old_mean.shape, generator=generator, dtype=torch.float64)
    new, old = gaussians(old_mean + 0.5 * std, std, x), gaussians(old_mean, std, x)
    mask = torch.ones(4000, 1, dtype=torch.bool)
    plain, guarded = (log_ratio(new, old, mask, kind).exp().mean().item() for kind in ("token", "guard"))
    assert plain == pytest.approx(math.exp(-1 / 8 + 1 / 8 / 64), abs=0.004)
    assert guarded == pytest.approx(1.0, abs=0.002)


def test_the_guarded_ratio_never_touches_masked_steps() -> None:
    mask = torch.tensor([[True, False]])
    mean = torch.tensor([[[0.1], [math.nan]]], requires_grad=True)
    new = Decisions(logprobs=torch.zeros(1, 2), mean=mean, std=torch.tensor([[[0.5], [0.0]]]))
    guarded = log_ratio(new, replace(new, mean=torch.zeros(1, 2, 1)), mask, "guard")
    guarded.sum().backward()
    assert guarded.tolist() == [[pytest.approx(0.01), 0.0]]  # 0.1^2 / (2 * 0.5)
    assert mean.grad.flatten().tolist() == [pytest.approx(0.2), 0.0]
    with pytest.raises(UsageError, match="ratio 'guard' needs decisions with a mean and a std"):
        log_ratio(Decisions(logprobs=NEW), Decisions(logprobs=OLD), MASK, "guard")


@pytest.mark.parametrize(
    ("threshold", "dropped"),
    [(0.0, [True, True, False, False]), (None, [True, False, False, False]), (1.0, [False] * 4)],
)
def test_dppo_drops_tokens_that_move_on_where_they_have_moved_far(threshold: float | None, dropped: list[bool]) -> None:
    """|p - p_old| is 0.2, 0.1, 0.2 and 0.14; the last two move back; the usual bound is 0.15."""
    p, p_old = torch.tensor([[0.7, 0.1, 0.3, 0.36]]).double(), torch.tensor([[0.5, 0.2, 0.1, 0.5]]).double()
    advantages, mask = torch.tensor([[2.0, -1.0, -1.0, 3.0]]).double(), torch.ones(1, 4).bool()
    new, old = Decisions(logprobs=p.log().requires_grad_()), Decisions(logprobs=p_old.log())
    loss = DPPO(threshold=threshold)(new, old, advantages, mask)
    plain = (-p / p_old * advantages)[0].tolist()  # -r A, whose derivative by log p is the same
    expected = [0.0 if drop else value for drop, value in zip(dropped, plain, strict=True)]
    assert loss.value[0].tolist() == pytest.approx(expected)
    loss.value.sum().backward()
    assert new.logprobs.grad[0].tolist() == pytest.approx(expected)
    assert (loss.stats["clip_low"] | loss.stats["clip_high"])[0].tolist() == dropped
    assert loss.stats["clip_high"][0].tolist() == [dropped[0], False, False, False]


@pytest.mark.parametrize(("ratio", "dropped"), [("token", [True, True, False]), ("sequence", [False] * 3)])
def test_dppo_asks_its_own_ratio_where_a_decision_moves(ratio: Any, dropped: list[bool]) -> None:
    """The ratios 3, 3 and 0.1 move on and back; the sequence's is the cube root of 0.9, and moves back."""
    p, p_old = torch.tensor([[0.6, 0.6, 0.02]]).double(), torch.full((1, 3), 0.2).double()
    new, old = Decisions(logprobs=p.log()), Decisions(logprobs=p_old.log())
    loss = DPPO(ratio=ratio)(new, old, torch.ones(1).double(), torch.ones(1, 3).bool())
    assert loss.stats["clip_high"][0].tolist() == dropped


@pytest.mark.parametrize(("threshold", "drop"), [(0.2, True), (0.2001, False)])
def test_dppo_compares_gaussian_decisions_by_their_exact_kl(threshold: float, drop: bool) -> None:
    """Means (0.2, 0.4) apart and std 0.5: (0.04 + 0.16) / 2 / 0.5 = 0.2 nats per dimension."""
    x, old_mean = torch.tensor([[[0.3, 0.5]]]).double(), torch.zeros(1, 1, 2, dtype=torch.float64)
    new, old = gaussians(torch.tensor([[[0.2, 0.4]]]).double(), 0.5, x), gaussians(old_mean, 0.5, x)
    loss = DPPO(threshold=threshold)(new, old, torch.tensor([1.0]).double(), torch.ones(1, 1).bool())
    assert (loss.value.item() == 0) == drop == loss.stats["clip_high"].item()
    # a decision that is far but moves back is kept, and the KL to the reference acts on a dropped one
    back = DPPO(threshold=threshold)(new, old, torch.tensor([-1.0]).double(), torch.ones(1, 1).bool())
    assert back.value.item() > 0
    held = DPPO(threshold=threshold, kl="gaussian", kl_coef=2.0)(
        new, old, torch.tensor([1.0]).double(), torch.ones(1, 1).bool(), old
    )
    assert held.value.item() == pytest.approx(loss.value.item() + 2 * 0.2)


def test_velocity_kl_by_hand() -> None:
    """A step of Flow-SDE, v and v_ref (0.3, -0.1) apart: (0.09 + 0.01) / 2, whatever the step and its noise."""
    x, v = torch.tensor([[[0.5, -1.0]]] * 2).double(), torch.tensor([[[0.2, 0.7]]] * 2).double().requires_grad_()
    ref_v = v.detach() - torch.tensor([0.3, -0.1]).double()
    for t, s, noise in ((1.0, 0.8, 0.7), (0.5, 0.25, 1.2)):
        kernel = flow_sde(t, s, noise=noise)
        new, ref = score(kernel, x, v, x), score(kernel, x, ref_v, x)
        kl = kl_divergence(new, ref, torch.tensor([[True], [False]]), "velocity")
        assert kl.flatten().tolist() == pytest.approx([0.05, 0.0])
        (slope,) = torch.autograd.grad(kl.sum(), v)
        assert slope.flatten().tolist() == pytest.approx([0.3, -0.1, 0.0, 0.0])
        loss = GRPO(kl="velocity", kl_coef=0.1)(new, new.detach(), torch.zeros(2), torch.ones(2, 1).bool(), ref)
        assert loss.value.flatten().tolist() == pytest.approx([0.005, 0.005])
    with pytest.raises(UsageError, match="kl 'velocity' needs the steps of a flow"):
        kl_divergence(replace(new, v_coef=None), ref, torch.ones(2, 1).bool(), "velocity")


def predictions(error: torch.Tensor) -> Decisions:
    """A prediction of the point (1, 0) that is off by `error` [b, t, 2]."""
    target = torch.tensor([1.0, 0.0]).double().expand_as(error)
    return Decisions(logprobs=-error.square().mean(-1), mean=target + error, target=target)


@pytest.mark.parametrize(
    ("advantage", "value", "slope"),
    [
        # e+ = (0.75, 0), |e+| 0.375, so 0.75; e- = (0.25, 1), |e-| 0.625, so 0.85; slopes by e (1, 0) and (-0.2, -0.8)
        (2.5, 10 * (0.75 * 0.75 + 0.25 * 0.85), [7.0, -2.0]),
        (9.0, 7.5, [10.0, 0.0]),
        (-5.0, 8.5, [-2.0, -8.0]),
        (0.0, 0.0, [0.0, 0.0]),
    ],
)
def test_nft_by_hand(advantage: float, value: float, slope: list[float]) -> None:
    """beta 0.5, the new prediction off by (1, -0.5), the old one by (0.5, 0.5); the loss is times 5 / 0.5."""
    error = torch.tensor([[[1.0, -0.5]]]).double().requires_grad_()
    old = predictions(torch.tensor([[[0.5, 0.5]]]).double())
    mask, advantages = torch.ones(1, 1).bool(), torch.tensor([advantage]).double()
    loss = NFT(beta=0.5)(predictions(error), old, advantages, mask)
    assert loss.value.item() == pytest.approx(value)
    assert torch.autograd.grad(loss.value.sum(), error)[0].flatten().tolist() == pytest.approx(slope)
    half = NFT(beta=0.5)(predictions(error), old, advantages, mask, correction=torch.tensor([[0.5]]))
    assert half.value.item() == pytest.approx(value / 2)


@pytest.mark.parametrize(
    ("beta", "means"), [(1.0, [2.796383527285304, 1.1481501344059424]), (0.5, [5.092260342501611, 1.8126382582413705])]
)
def test_nft_is_that_of_another_trainer(beta: float, means: list[float]) -> None:
    """The means over the six samples at each level, by Flow-Factory's lines on these tensors."""
    copies = [noised_copies.view(v) for v in (noised_copies.VELOCITY, noised_copies.OLD_VELOCITY)]
    loss = NFT(beta=beta)(*copies, noised_copies.ADVANTAGES, noised_copies.EVERY)
    assert loss.value.mean(0).tolist() == pytest.approx(means, abs=1e-12)


def test_nft_leaves_the_masked_alone_and_needs_targets() -> None:
    """Also where a prediction is exact, which nothing may be divided by."""
    error = torch.tensor([[[0.0, 0.0], [math.nan, 1.0]]]).double().requires_grad_()
    loss = NFT()(predictions(error), predictions(error).detach(), torch.ones(1).double(), torch.tensor([[True, False]]))
    (slope,) = torch.autograd.grad(loss.value.sum(), error)
    assert (loss.value.tolist(), slope.flatten().tolist()) == ([[0.0, 0.0]], [0.0] * 4)
    with pytest.raises(UsageError, match="objective 'nft' compares predictions of finished samples, but this policy's"):
        NFT()(Decisions(logprobs=NEW), Decisions(logprobs=OLD), ADVANTAGES, MASK)


def test_entropy_bonus_by_hand() -> None:
    entropy = torch.full_like(NEW, 0.7).requires_grad_()
    plain = GRPO()(Decisions(logprobs=NEW, entropy=entropy), Decisions(logprobs=OLD), ADVANTAGES, MASK)
    bonus = GRPO(entropy_coef=0.1)(Decisions(logprobs=NEW, entropy=entropy), Decisions(logprobs=OLD), ADVANTAGES, MASK)
    assert torch.allclose(plain.value - bonus.value, 0.07 * MASK.double())
    bonus.value.sum().backward()
    assert torch.equal(entropy.grad, -0.1 * MASK.double())
    with pytest.raises(UsageError, match="gives no entropy"):
        GRPO(entropy_coef=0.1)(Decisions(logprobs=NEW), Decisions(logprobs=OLD), ADVANTAGES, MASK)


def test_reductions_by_hand() -> None:
    # rows of 4 and 2 decisions, 2 rows, at most 5
    sums = {
        "sequence_mean": [[1 / 8] * 4, [1 / 4, 1 / 4, 0, 0]],
        "token_mean": [[1 / 6] * 4, [1 / 6, 1 / 6, 0, 0]],
        "fixed_length": [[0.1] * 4, [0.1, 0.1, 0, 0]],
        "sequence_sum": [[0.5] * 4, [0.5, 0.5, 0, 0]],
    }
    for name, expected in sums.items():
        assert torch.allclose(weighted(MASK, name, 5), torch.tensor(expected).double())


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_nan_under_the_mask_changes_nothing(name: str, poison: float) -> None:
    objective = OBJECTIVES_BY_NAME[name](
        kl_coef=0.1, kl_bias_correction=True, entropy_coef=0.1, off_policy_mask_threshold=0.1
    )
    results = []
    for value in (0.0, poison):
        views = []
        for x in (NEW, OLD, REF):
            y = torch.where(MASK, x, value).requires_grad_()
            views.append(Decisions(logprobs=y, entropy=torch.where(MASK, 0.5, value)))
        found = objective(views[0], views[1].detach(), ADVANTAGES, MASK, views[2].detach())
        found.value.sum().backward()
        results.append((found.value, views[0].logprobs.grad, *found.stats.values()))
    for clean, poisoned in zip(*results, strict=True):
        assert torch.equal(clean, poisoned)


def test_gaussian_kl_never_touches_masked_steps() -> None:
    mask = torch.tensor([[True, False]])
    mean = torch.tensor([[[0.1], [math.nan]]], requires_grad=True)
    std = torch.tensor([[[0.5], [0.0]]])
    steps = Decisions(logprobs=torch.zeros(1, 2), mean=mean, std=std)
    kl = kl_divergence(
        steps, Decisions(logprobs=torch.zeros(1, 2), mean=torch.zeros(1, 2, 1), std=std), mask, "gaussian"
    )
    kl.sum().backward()
    assert kl.tolist() == [[pytest.approx(0.02), 0.0]]
    assert mean.grad.flatten().tolist() == [pytest.approx(0.4), 0.0]


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_ratio_beyond_all_bounds_stays_finite(name: str) -> None:
    new = torch.tensor([[0.0]], requires_grad=True)
    objective = OBJECTIVES_BY_NAME[name](kl_coef=0.1)
    for advantage in (1.0, -1.0, 0.0):
        far = Decisions(logprobs=torch.tensor([[-95.0]]))
        found = objective(Decisions(logprobs=new), far, torch.tensor([advantage]), torch.ones(1, 1).bool(), far)
        (slope,) = torch.autograd.grad(found.value.sum(), new)
        assert found.value.isfinite().all()
        assert slope.isfinite().all()


def test_entropy_without_a_coefficient_is_only_measured() -> None:
    entropy = torch.full_like(NEW, 0.7).requires_grad_()
    new = NEW.clone().requires_grad_()
    found = GRPO()(Decisions(logprobs=new, entropy=entropy), Decisions(logprobs=OLD), ADVANTAGES, MASK)
    found.value.sum().backward()
    assert entropy.grad is None
    assert found.stats["entropy"][MASK].mean() == pytest.approx(0.7)


def test_reference_is_required_only_with_kl() -> None:
    assert not GRPO().needs_reference
    with pytest.raises(UsageError, match="GRPO needs the reference"):
        GRPO(kl_coef=0.1)(Decisions(logprobs=NEW), Decisions(logprobs=OLD), ADVANTAGES, MASK)


logs = st.floats(-3, 0, width=32)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(logs, min_size=3, max_size=3), min_size=1, max_size=4), st.data())
def test_on_policy_gradient_is_minus_advantage_over_n(values: list[list[float]], data: st.DataObject) -> None:
    new = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    n = len(values)
    a = torch.tensor(data.draw(st.lists(st.floats(-3, 3), min_size=n, max_size=n)), dtype=torch.float64)
    mask = torch.ones(n, 3).bool()
    found = objectives.DAPO()(Decisions(logprobs=new), Decisions(logprobs=new.detach()), a, mask)
    (found.value * weighted(mask, "token_mean", 3)).sum().backward()
    assert torch.allclose(new.grad, (-a / (3 * n))[:, None].expand(n, 3), atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.floats(-2, 2), st.floats(-3, -0.01))
def test_pessimism_for_negative_advantages(log_r: float, advantage: float) -> None:
    value, _ = surrogate(math.exp(log_r), advantage)
    assert value >= -math.exp(log_r) * advantage - 1e-12  # never better than unclipped
    assert value >= -0.8 * advantage - 1e-12  # never below the clipped floor


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda loss: None, "expected a grpokit.objectives.Loss"),
        (lambda loss: loss.value, "expected a grpokit.objectives.Loss"),
        (lambda loss: replace(loss, value=loss.value.mean()), r"gave 'loss' the shape \(\)"),
        (lambda loss: replace(loss, value=loss.value.sum(1, keepdim=True)), r"gave 'loss' the shape \(\d, 1\)"),
        (lambda loss: replace(loss, value=loss.value[0]), "gave 'loss' the shape"),
        (lambda loss: replace(loss, stats={"clip_low": torch.zeros(())}), r"gave 'clip_low' the shape \(\)"),
        (lambda loss: replace(loss, value=loss.value.detach()), "a loss without a gradient"),
    ],
)
def test_a_policy_loss_that_would_be_broadcast_is_refused(answer: Any, words: str) -> None:
    class Own(GRPO):
        def policy_loss(self, *args: Any) -> Any:
            return answer(super().policy_loss(*args))

    new, old = Decisions(logprobs=NEW.clone().requires_grad_()), Decisions(logprobs=OLD)
    with pytest.raises(UsageError, match=words):
        Own()(new, old, ADVANTAGES, MASK)
