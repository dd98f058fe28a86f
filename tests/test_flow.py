"""Flow samplers: hand-computed steps, their defining properties, and what they do to a distribution that is known."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from grpokit import UsageError, flow
from grpokit.divergence import kl_divergence, policy_divergence
from grpokit.objectives import GRPO
from grpokit.sampling import normals, uniforms

STD = 0.4  # of the data in the one-dimensional case below


def exact_velocity(x: Tensor, t: float) -> Tensor:
    """E[e - x0 | x_t = x] for x0 ~ N(0, STD^2) and e ~ N(0, 1)."""
    variance = (1 - t) ** 2 * STD**2 + t**2
    return x * (t - (1 - t) * STD**2) / variance


def final_std(sampler: flow.Sampler, noise: float | None, steps: int) -> float:
    """The std of the samples: every step is linear in x, so variances can be followed exactly."""
    sigmas = flow.linear_sigmas(steps).tolist()
    variance = 1.0
    for t, s in itertools.pairwise(sigmas):
        one = torch.ones((), dtype=torch.float64)
        slope, std = flow.kernel(sampler, t, s, noise=noise).moments(one, exact_velocity(one, t))
        variance = float(slope) ** 2 * variance + float(std) ** 2
    return math.sqrt(variance)


@pytest.mark.parametrize(
    ("sampler", "noise", "expected"),
    [("flow-sde", 0.7, (0.381, 0.396, 0.400)), ("cps", 0.7, (0.292, 0.324, 0.338))],
)
def test_spread_of_a_gaussian_at_10_40_and_400_steps(
    sampler: flow.Sampler, noise: float, expected: tuple[float, ...]
) -> None:
    assert [final_std(sampler, noise, n) for n in (10, 40, 400)] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("sampler", ["flow-sde", "dance-sde", "ode"])
def test_true_samplers_converge(sampler: flow.Sampler) -> None:
    assert final_std(sampler, None, 2000) == pytest.approx(STD, abs=6e-4)


def test_cps_does_not() -> None:
    assert final_std("cps", 0.7, 2000) < 0.35


def kernel_numbers(k: flow.Kernel) -> tuple[float, float, float]:
    return k.x_coef.item(), k.v_coef.item(), k.std.item()


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        # g^2 = 0.49 * 0.5 / 0.5, D = 0.25: x (1 - 0.49 * 0.25), -v (1 + 0.245) * 0.25, 0.7 * 0.5
        (flow.flow_sde(0.5, 0.25, noise=0.7), (0.8775, -0.31125, 0.35)),
        # t = 1: g^2 = 0.25 * 1 / (1 - 0.75), D = 0.25: x (1 - 0.125), -v D, sqrt(0.25)
        (flow.flow_sde(1.0, 0.75, noise=0.5), (0.875, -0.25, 0.5)),
        # one step to the end: g = a, D = 1
        (flow.flow_sde(1.0, 0.0, noise=0.5), (0.875, -1.0, 0.5)),
        # g^2 = 0.09, t = 0.6, D = 0.2: 1 - 0.018 / 1.2, -(1 + 0.09 * 0.4 / 1.2) * 0.2, sqrt(0.018)
        (flow.dance_sde(0.6, 0.4, noise=0.3), (0.985, -0.206, math.sqrt(0.018))),
        # sin(pi / 6) = 1/2, s' = 0.4: std 0.2, kept 0.4 * sqrt(3) / 2
        (
            flow.cps(0.8, 0.4, noise=1 / 3),
            (0.6 + 0.2 * math.sqrt(3), -0.6 * 0.8 + 0.2 * math.sqrt(3) * 0.2, 0.2),
        ),
        (flow.cps(0.2, 0.0, noise=0.8), (1.0, -0.2, 0.0)),
        (flow.ode(0.8, 0.5), (1.0, -0.3, 0.0)),
    ],
)
def test_steps_by_hand(k: flow.Kernel, expected: tuple[float, float, float]) -> None:
    assert kernel_numbers(k) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("a", [0.3, 0.7, 1.2])
def test_flow_sde_answers_to_the_velocity_alike_everywhere(a: float) -> None:
    """Away from t = 1: d mean = -(1 + a^2 / 2) D dv."""
    t = torch.linspace(0.02, 0.98, 25, dtype=torch.float64)
    k = flow.flow_sde(t, t - 0.01, noise=a)
    torch.testing.assert_close(k.v_coef, torch.full_like(t, -(1 + a**2 / 2) * 0.01))


@pytest.mark.parametrize("sampler", ["flow-sde", "dance-sde", "cps"])
def test_without_noise_every_sampler_is_euler(sampler: flow.Sampler) -> None:
    sigmas = flow.linear_sigmas(7)
    k = flow.kernel(sampler, sigmas[:-1], sigmas[1:], noise=0)
    euler = flow.ode(sigmas[:-1], sigmas[1:])
    for name in ("x_coef", "v_coef", "std"):
        torch.testing.assert_close(getattr(k, name), getattr(euler, name), atol=1e-15, rtol=0)
    x, v = normals(torch.arange(2), 12).unflatten(0, (2, 1)).unflatten(2, (6, 2))[:, 0], torch.ones(2, 6, 2)
    mean, _ = flow.ode(sigmas[:6, None], sigmas[1:7, None]).moments(x, v)
    torch.testing.assert_close(mean, x - v / 7)


def test_cps_is_the_two_estimates_mixed() -> None:
    x, v = normals(torch.tensor([1, 2]), 3).split(1)
    t, s, eta = 0.7, 0.45, 0.8
    mean, std = flow.cps(t, s, noise=eta).moments(x, v)
    clean, noise = x - t * v, x + (1 - t) * v
    assert float(std) == pytest.approx(s * math.sin(eta * math.pi / 2))
    torch.testing.assert_close(mean, (1 - s) * clean + math.sqrt(s**2 - float(std) ** 2) * noise)
    torch.testing.assert_close((1 - t) * clean + t * noise, x)
    torch.testing.assert_close(noise - clean, v)


@pytest.mark.parametrize("sampler", ["flow-sde", "dance-sde", "cps"])
def test_a_tensor_of_sigmas_is_its_steps(sampler: flow.Sampler) -> None:
    sigmas = flow.linear_sigmas(5)
    together = flow.kernel(sampler, sigmas[:-1, None], sigmas[1:, None])
    for i in range(5):
        alone = flow.kernel(sampler, float(sigmas[i]), float(sigmas[i + 1]))
        assert kernel_numbers(alone) == pytest.approx(
            (together.x_coef[i].item(), together.v_coef[i].item(), together.std[i].item())
        )


def test_score_is_the_normal_density_per_dimension() -> None:
    sigmas = flow.linear_sigmas(4)
    step = flow.flow_sde(sigmas[:-1, None, None], sigmas[1:, None, None])
    x, v, noise = normals(torch.arange(9), 4 * 6).unflatten(1, (4, 2, 3)).split(3)  # [3, 4, 2, 3]
    v.requires_grad_()
    there = flow.draw(step, x, v, noise)
    steps = flow.score(step, x, v, there)
    assert steps.mean is not None
    assert steps.std is not None
    assert steps.std.shape == (3, 4, 1, 1)
    density = torch.distributions.Normal(steps.mean, steps.std).log_prob(there.detach())
    torch.testing.assert_close(steps.logprobs, density.flatten(2).mean(-1))
    torch.testing.assert_close((there - steps.mean) / steps.std, noise)
    (slope,) = torch.autograd.grad(steps.logprobs.sum(), v)  # x' is what was drawn: no gradient through it
    torch.testing.assert_close(slope, noise / steps.std.detach() * step.v_coef / 6)
    assert kl_divergence(steps, steps, torch.ones(3, 4, dtype=torch.bool), "gaussian").abs().max() < 1e-12


def test_low_precision_ends_at_the_step() -> None:
    step = flow.flow_sde(0.5, 0.25)
    x, v = torch.ones(1, 1, 2), torch.full((1, 1, 2), 0.3, dtype=torch.bfloat16)
    mean, std = step.moments(x, v)
    assert mean.dtype == std.dtype == torch.float32
    assert step.moments(x.bfloat16(), v)[0].dtype == torch.float32
    assert step.moments(x.double(), v)[0].dtype == torch.float64
    assert flow.draw(step, x, v, normals(torch.arange(1), 2)[:, None]).dtype == torch.float32


@pytest.mark.parametrize("step", [flow.ode(0.5, 0.25), flow.cps(0.1, 0.0), flow.dance_sde(0.5, 0.4, noise=0)])
def test_a_step_without_noise_is_refused(step: flow.Kernel) -> None:
    x = torch.zeros(1, 1, 2)
    assert torch.equal(flow.draw(step, x, x, x), x)  # it can be taken, but not scored
    with pytest.raises(UsageError, match="not a decision"):
        flow.score(step, x, x, x)


def test_one_step_without_noise_among_others_is_refused() -> None:
    sigmas, x = flow.linear_sigmas(3), torch.zeros(1, 3, 2)
    step = flow.cps(sigmas[:-1, None], sigmas[1:, None])
    with pytest.raises(UsageError, match="step of 'cps' to sigma 0"):
        flow.score(step, x, x, x)
    flow.score(flow.cps(sigmas[:2, None], sigmas[1:3, None]), x[:, :2], x[:, :2], x[:, :2])


def test_the_published_score_of_cps_in_nats() -> None:
    """-mean((x' - mean)^2) over a step's dimensions; differences of it are 2 std^2 times differences of log-probs."""
    step = flow.cps(0.7, 0.45)
    x, v, w, there = normals(torch.arange(4), 6).unflatten(1, (3, 2)).split(1)  # [1, 3, 2]
    one, other = flow.score(step, x, v, there), flow.score(step, x, w, there)
    assert one.mean is not None
    assert other.mean is not None
    published = (there - other.mean).square().mean(-1) - (there - one.mean).square().mean(-1)
    torch.testing.assert_close(published, 2 * step.std**2 * (one.logprobs - other.logprobs))


@pytest.mark.parametrize(
    ("sigma", "sigma_next"), [(0.5, 0.5), (0.5, 0.6), (1.1, 0.5), (0.5, -0.1), (0.0, 0.0), (math.nan, 0.1)]
)
def test_sigmas_must_fall(sigma: float, sigma_next: float) -> None:
    with pytest.raises(UsageError, match="In every step sigma must fall"):
        flow.flow_sde(sigma, sigma_next)


def test_bad_names_and_levels() -> None:
    with pytest.raises(UsageError, match="'flow-sde', 'dance-sde', 'cps' or 'ode', got 'euler'"):
        flow.kernel("euler", 0.5, 0.4)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'ode' has no noise"):
        flow.kernel("ode", 0.5, 0.4, noise=0.7)
    with pytest.raises(UsageError, match=r"at least 0 and at most 1, got 1\.2"):
        flow.cps(0.5, 0.4, noise=1.2)
    for level in (-0.1, math.nan, math.inf):
        with pytest.raises(UsageError, match="noise of 'flow-sde' must be at least 0, got"):
            flow.flow_sde(0.5, 0.4, noise=level)
    with pytest.raises(UsageError, match="at least 1 step, got 0"):
        flow.linear_sigmas(0)


def test_normals_are_normal_and_follow_from_seeds() -> None:
    seeds = torch.arange(200)
    z = normals(seeds, 100)
    assert z.dtype == torch.float64
    assert torch.equal(normals(seeds[7:9], 10, start=90), z[7:9, 90:])
    torch.testing.assert_close(torch.special.ndtr(z), uniforms(seeds, 100))
    assert abs(float(z.mean())) < 0.02
    assert float(z.var()) == pytest.approx(1, abs=0.03)
    assert float(z.pow(4).mean()) == pytest.approx(3, abs=0.2)


@pytest.mark.parametrize(("weight", "w"), [("uniform", 1.0), ("t", 0.4), ("t^2", 0.16)])
def test_the_score_of_a_copy_by_hand(weight: flow.Weight, w: float) -> None:
    """x0 (1, -1), noise (0.5, 2), t 0.4: the copy is (0.8, 0.2), and its velocity (-0.5, 3)."""
    x0, noise = torch.tensor([[[1.0, -1.0]]]).double(), torch.tensor([[[0.5, 2.0]]]).double()
    v, t = (
        torch.tensor([[[0.3, 1.0]]]).double().requires_grad_(),
        torch.tensor(0.4, dtype=torch.float64),
    )  # off by (0.8, -2)
    assert flow.noised(x0, noise, t).flatten().tolist() == pytest.approx([0.8, 0.2])
    view = flow.Matching(weight=weight).score(x0, noise, v, t)
    assert view.logprobs.tolist() == [[pytest.approx(-w * (0.64 + 4) / 2)]]
    (slope,) = torch.autograd.grad(view.logprobs.sum(), v)
    assert slope.flatten().tolist() == pytest.approx([-0.8 * w, 2 * w])
    assert view.mean is not None
    assert view.target is not None
    assert view.v_coef is not None
    assert view.mean.flatten().tolist() == pytest.approx([0.8 - 0.4 * 0.3, 0.2 - 0.4 * 1.0])
    assert view.target.tolist() == x0.tolist()
    assert (view.v_coef.flatten().tolist(), view.std) == ([-0.4], None)
    # the objective grpo before the first update: -A times the slope
    loss = GRPO(clip_range=1e-5)(view, view.detach(), torch.tensor([2.0]), torch.ones(1, 1).bool()).value
    assert loss.item() == -2
    other = flow.Matching(weight=weight).score(x0, noise, v + torch.tensor([0.3, -0.1]), t)
    assert kl_divergence(view, other, torch.ones(1, 1).bool(), "velocity").item() == pytest.approx(0.05)
    with pytest.raises(UsageError, match="Use k3, or velocity for a flow with matching"):
        kl_divergence(view, other, torch.ones(1, 1).bool(), "gaussian")
    with pytest.raises(UsageError, match="kl 'k1' needs log-probs, and noised copies of samples have none"):
        kl_divergence(view, other, torch.ones(1, 1).bool(), "k1")
    with pytest.raises(UsageError, match="dppo compares densities, and noised copies of samples have none"):
        policy_divergence(view, other, torch.ones(1, 1).bool())
    with pytest.raises(UsageError, match="ratio 'guard' needs decisions with a mean and a std"):
        GRPO(ratio="guard")(view, view.detach(), torch.tensor([2.0]), torch.ones(1, 1).bool())


def test_levels_lie_one_in_each_part_of_the_schedule() -> None:
    places = flow.Matching(times=4, share=0.5).places(torch.arange(100))  # [100, 4]
    parts = (places / 0.125).floor()
    assert torch.equal(parts, torch.arange(4.0).double().expand(100, 4))
    assert (places.mean(0) - torch.tensor([0.0625, 0.1875, 0.3125, 0.4375])).abs().max() < 0.01
    assert len(places[:, 0].unique()) == 100
    assert torch.equal(flow.Matching(times=4, share=0.5).places(torch.tensor([7])), places[7:8])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": "t2"}, "weight must be 'uniform' or 't' or 't\\^2', got 't2'"),
        ({"times": 0}, "times must be at least 1"),
    ],
)
def test_settings_of_copies_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        flow.Matching(**settings)


@pytest.mark.parametrize(
    ("kind", "expected"), [("guard", [4, 2]), ("tempflow", [1.125, 2.25 * 0.5**0.5]), ("flash", None)]
)
def test_step_weights_by_hand(kind: str, expected: list[float] | None) -> None:
    """Steps 0.5 -> 0.25 and 0.75 -> 0.25 with g = 1: std 0.5 and 0.707, v_coef -(D + D (1 - t) / (2 t))."""
    sigma, after = torch.tensor([0.5, 0.75]).double(), torch.tensor([0.25, 0.25]).double()
    steps = flow.dance_sde(sigma, after, noise=1.0)
    if expected is None:
        parts = [1 / (d**0.5 + d**0.5 * (1 - t) / (2 * t)) for t, d in ((0.5, 0.25), (0.75, 0.5))]  # the paper's form
        expected = [part / (sum(parts) / 2) for part in parts]
    assert flow.step_weights(kind, steps, sigma - after).tolist() == pytest.approx(expected)


def test_a_step_of_the_ode_is_predicted() -> None:
    """From t = 0.75 to 0.5 its mean is x - v / 4; its std is 1, and its log-prob is 0, without a gradient."""
    x, v = torch.tensor([[[1.0, -2.0]]]), torch.tensor([[[4.0, 8.0]]]).requires_grad_()
    view = flow.predict(flow.ode(0.75, 0.5), x, v)
    assert view.mean.tolist() == [[[0.0, -4.0]]]
    assert (view.std.tolist(), view.v_coef.tolist(), view.logprobs.tolist()) == ([[[1.0]]], [[[-0.25]]], [[0.0]])
    assert torch.autograd.grad(view.mean.sum(), v)[0].tolist() == [[[-0.25, -0.25]]]
    assert not view.logprobs.requires_grad
    with pytest.raises(UsageError, match="step_weight 'flash' is for steps with noise; the ODE's have none"):
        flow.step_weights("flash", flow.ode(torch.tensor([0.75]), torch.tensor([0.5])), torch.tensor([0.25]))


def test_step_weights_of_no_kind() -> None:
    steps = flow.cps(torch.tensor([0.5]), torch.tensor([0.0]))
    assert flow.step_weights("none", steps, torch.tensor([0.5])) is None
    with pytest.raises(UsageError, match="step_weight must be"):
        flow.step_weights("sqrt", steps, torch.tensor([0.5]))
