"""Steps of rectified-flow samplers as Gaussian decisions: pure functions, without a network or a loop.

A path x_t = (1 - t) x0 + t e leads from noise (t = 1) to data (t = 0), and a network predicts v = e - x0. Every sampler
here draws x' ~ N(x_coef x + v_coef v, std^2). The coefficients depend only on the two sigmas (a `Kernel`), so a policy
needs three calls: `kernel`, then `draw` in its rollout and `score` in its `logprobs`. Or its decisions are noised
copies of what it drew (`Matching`). Log-probs are in nats per latent dimension. Everything is in fp32 or better, the
coefficients in fp64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import torch
from annotated_types import Gt, Le
from torch import Tensor

from grpokit.errors import UsageError
from grpokit.sampling import mix, uniforms
from grpokit.settings import Count, Settings
from grpokit.types import Decisions

Sampler: TypeAlias = Literal["flow-sde", "dance-sde", "cps", "ode"]
"""How a denoising step draws noise: `Kernel` has the formulas. "ode" draws none."""
StepWeight: TypeAlias = Literal["none", "guard", "tempflow", "flash"]
"""What a step's part of the loss is multiplied by: `step_weights` has the formulas."""
Weight: TypeAlias = Literal["uniform", "t", "t^2"]
"""How much a noised copy counts at its time t."""
Sigma: TypeAlias = Tensor | float
"""The share of noise in a latent, from 1 (noise) to 0 (data)."""

_POWERS: Mapping[Weight, int] = {"uniform": 0, "t": 1, "t^2": 2}
_COPIES = 0x434F50494553  # sets the draw of noise levels apart from a group's other draws


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The distribution of a step's result, given its start: N(x_coef x + v_coef v, std^2).

    Attributes:
        x_coef: fp64, in the shape of the sigmas, which must broadcast against the latents: a scalar for one step,
            [t, 1] for latents [b, t, D].
        v_coef: fp64, the same shape.
        std: fp64, the same shape.
    """

    x_coef: Tensor
    v_coef: Tensor
    std: Tensor

    def moments(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [b, t, ...] and std (broadcastable to it) of the next latent, in fp32 or better.

        Args:
            x: [b, t, ...], the latent at the step's start.
            v: the same shape, the velocity there, in any precision.
        """
        x = _at_least_fp32(x)
        v = _at_least_fp32(v)
        x_coef = self.x_coef.to(x, non_blocking=True)
        v_coef = self.v_coef.to(x, non_blocking=True)
        std = self.std.to(x, non_blocking=True)
        return x_coef * x + v_coef * v, std


def linear_sigmas(steps: int) -> Tensor:
    """[steps + 1] fp64, evenly from 1 to 0: the unshifted schedule.

    >>> linear_sigmas(4)
    tensor([1.0000, 0.7500, 0.5000, 0.2500, 0.0000], dtype=torch.float64)
    """
    if steps < 1:
        raise UsageError(f"A flow needs at least 1 step, got {steps}.")
    return torch.linspace(1.0, 0.0, steps + 1, dtype=torch.float64)


def ode(sigma: Sigma, sigma_next: Sigma) -> Kernel:
    """An Euler step of the probability-flow ODE: mean x - v D with D = sigma - sigma_next, and no noise."""
    t, s = _sigmas(sigma, sigma_next)
    return Kernel(x_coef=torch.ones_like(t), v_coef=s - t, std=torch.zeros_like(t))


def flow_sde(sigma: Sigma, sigma_next: Sigma, *, noise: float = 0.7) -> Kernel:
    """Flow-SDE: an Euler-Maruyama step with g = a sqrt(t / (1 - t)), which keeps the flow's marginals as D -> 0.

    From Flow-GRPO (Liu et al., 2025, arXiv:2505.05470). At t = 1, where g has a pole, the
    denominator is 1 - sigma_next, as in the authors' code. Published levels lie between 0.7 and 1.5.

    Args:
        sigma: t, in (0, 1]; a number, or a tensor that broadcasts against the latents.
        sigma_next: below `sigma`, at least 0; the same shape.
        noise: a.

    >>> k = flow_sde(0.5, 0.25, noise=1.0)  # g = 1, D = 1/4
    >>> k.x_coef.item(), k.v_coef.item(), k.std.item()
    (0.75, -0.375, 0.5)
    """
    t, s = _sigmas(sigma, sigma_next)
    a = _level("flow-sde", noise)
    without_pole = torch.where(t == 1, s, t)
    return _euler_maruyama(t, s, g_squared=a**2 * t / (1 - without_pole))


def dance_sde(sigma: Sigma, sigma_next: Sigma, *, noise: float = 0.3) -> Kernel:
    """Dance-SDE: the same Euler-Maruyama step with a constant g.

    From DanceGRPO (Xue et al., 2025, arXiv:2505.07818). Arguments as for `flow_sde`; `noise` is g.
    """
    t, s = _sigmas(sigma, sigma_next)
    g = _level("dance-sde", noise)
    return _euler_maruyama(t, s, g_squared=torch.full_like(t, g**2))


def cps(sigma: Sigma, sigma_next: Sigma, *, noise: float = 0.8) -> Kernel:
    """CPS: estimates data and noise, and replaces a part of the noise with fresh noise.

    mean = (1 - s') x0^ + sqrt(s'^2 - std^2) e^ and std = s' sin(eta pi / 2). From "Coefficients-preserving sampling
    for reinforcement learning with flow matching" (Wang and Yu, 2025, arXiv:2509.05952). A latent has exactly the noise
    of its sigma, so pictures stay clean. But the spread of the samples shrinks, and more steps bring it back only in
    part. A step to sigma 0 has no noise: it is not a decision, and `score` refuses it. Arguments as for
    `flow_sde`; `noise` is eta, at most 1.
    """
    t, s = _sigmas(sigma, sigma_next)
    angle = _level("cps", noise) * math.pi / 2
    noise_coef = s * math.cos(angle)  # sqrt(s'^2 - std^2)
    data_coef = 1 - s
    return Kernel(
        x_coef=data_coef + noise_coef,
        v_coef=noise_coef * (1 - t) - data_coef * t,
        std=s * math.sin(angle),
    )


_KERNELS: Mapping[str, Callable[..., Kernel]] = {
    "flow-sde": flow_sde,
    "dance-sde": dance_sde,
    "cps": cps,
}


def kernel(sampler: Sampler, sigma: Sigma, sigma_next: Sigma, *, noise: float | None = None) -> Kernel:
    """The kernel of a sampler by name.

    Args:
        sampler: "flow-sde", "dance-sde", "cps" or "ode".
        sigma: t, in (0, 1]; a number, or a tensor that broadcasts against the latents.
        sigma_next: below `sigma`, at least 0; the same shape.
        noise: the sampler's noise level (a, g or eta); None means its default. "ode" has none.
    """
    if sampler == "ode":
        if noise:
            raise UsageError(f"The sampler 'ode' has no noise, got noise={noise}.")
        return ode(sigma, sigma_next)
    if sampler not in _KERNELS:
        raise UsageError(f"The sampler must be {', '.join(map(repr, _KERNELS))} or 'ode', got {sampler!r}.")
    level = {} if noise is None else {"noise": noise}
    return _KERNELS[sampler](sigma, sigma_next, **level)


def step_weights(kind: StepWeight, steps: Kernel, widths: Tensor) -> Tensor | None:
    """How much the policy loss of each step counts: fp64, in the shape of the widths; None for "none": all the same.

    "guard": 1 / width, GRPO-Guard (Wang et al., 2025, arXiv:2510.22319). "tempflow": 2.25 std, TempFlow-GRPO
    (2025, arXiv:2508.04324): steps with more noise count more. "flash": std / |v_coef|, divided by its mean over the
    steps with noise, Flash-GRPO (2026, arXiv:2605.15980): the gradient by the velocity is then as large at each step.

    Args:
        kind: which of them.
        steps: their kernels.
        widths: sigma - sigma_next of each.

    Raises:
        UsageError: there is no such kind, or no step has noise.

    >>> step = kernel("flow-sde", torch.tensor([0.5, 0.25]), torch.tensor([0.25, 0.0]), noise=1.0)
    >>> step_weights("guard", step, torch.tensor([0.25, 0.25]).double())
    tensor([4., 4.], dtype=torch.float64)
    """
    if kind == "none":
        return None
    if kind == "guard":
        return 1 / widths
    if kind in ("tempflow", "flash") and not (steps.std > 0).any():
        raise UsageError(f"step_weight '{kind}' is for steps with noise; the ODE's have none: set step_weight: none.")
    if kind == "tempflow":
        return 2.25 * steps.std
    if kind == "flash":
        ratio = steps.std / steps.v_coef.abs()
        return ratio / ratio[steps.std > 0].mean()
    raise UsageError(f"step_weight must be 'none', 'guard', 'tempflow' or 'flash', got {kind!r}.")


def decided_steps(sampler: Sampler, steps: int, *, noise: float | None = None) -> int:
    """How many steps of a sampler can be decisions: those with noise, or all of the ODE, which `predict` looks at.

    Raises:
        UsageError: none can, or the sampler cannot have that noise.
    """
    if noise == 0:
        raise UsageError(
            f"Training needs a noise above 0, got {noise}. Leave it out for the sampler's own. Evaluation follows the "
            "ODE anyway."
        )
    if sampler == "ode":
        return steps
    sigmas = linear_sigmas(steps)
    step = kernel(sampler, sigmas[:-1], sigmas[1:], noise=noise)
    count = int((step.std > 0).sum())
    if not count:
        raise UsageError(f"{sampler!r} with steps={steps} has no step with noise, so nothing to train: use more.")
    return count


def draw(step: Kernel, x: Tensor, v: Tensor, noise: Tensor) -> Tensor:
    """The next latent, mean + std * noise, in fp32 or better. Store it in this dtype, since `score` needs all its bits.

    Args:
        step: the kernel.
        x: [b, t, ...], the latent.
        v: [b, t, ...], the network's velocity there.
        noise: [b, t, ...] standard normals (see `grpokit.sampling.normals`).
    """
    mean, std = step.moments(x, v)
    return mean + std * noise.to(mean)


def score(step: Kernel, x: Tensor, v: Tensor, x_next: Tensor) -> Decisions:
    """Log-probs of stored steps, with gradient to v, and the Gaussians, for an exact KL.

    Args:
        step: the kernel, of sigmas [t, 1, ...] or scalars.
        x: [b, t, ...], the latents that the steps started from.
        v: [b, t, ...], the network's velocities there.
        x_next: [b, t, ...], the latents that were drawn; no gradient goes through them.

    Returns:
        log-probs [b, t] in nats per dimension (see `gaussian_logprobs`), mean [b, t, ...], std and v_coef
        [b, t, 1, ...].

    Raises:
        UsageError: a step without noise, such as an ODE step or CPS's last; it has no density and cannot be trained.
    """
    if bool((step.std <= 0).any()):
        raise UsageError(
            "A step without noise (any ODE step, and the step of 'cps' to sigma 0) is not a decision: it has no "
            "density and cannot be trained. Leave it out of the decisions, or mask it and do not score it."
        )
    mean, std = step.moments(x, v)
    std = _per_decision(std, mean)
    v_coef = _per_decision(step.v_coef, mean)
    logprobs = gaussian_logprobs(x_next.detach(), mean, std)
    return Decisions(logprobs=logprobs, mean=mean, std=std, v_coef=v_coef)


def predict(step: Kernel, x: Tensor, v: Tensor) -> Decisions:
    """The view of steps without noise, such as the ODE's: they are not drawn at random, so they have no density.

    Their means can be compared with those of another policy, as on-policy distillation does (see `objective: opd`).

    Args:
        step: the kernel, as for `score`.
        x: [b, t, ...], the latents that the steps started from.
        v: [b, t, ...], the network's velocities there.

    Returns:
        log-probs [b, t], 0 and without gradient; mean [b, t, ...] with gradient to v; std [b, t, 1, ...], 1 by
        convention; and v_coef [b, t, 1, ...].
    """
    mean, std = step.moments(x, v)
    unit = _per_decision(torch.ones_like(std), mean)
    v_coef = _per_decision(step.v_coef, mean)
    return Decisions(logprobs=mean.new_zeros(mean.shape[:2]), mean=mean, std=unit, v_coef=v_coef)


@dataclass(frozen=True, kw_only=True)
class Matching(Settings):
    """Decisions that are noised copies of a finished sample x0, in place of denoising steps.

    A sample may then be drawn by any sampler, such as the ODE. Each of its T copies is x_t = (1 - t) x0 + t e, and the
    network's velocity there should be e - x0. Its score -w(t) mean (v - (e - x0))^2 stands for a log-prob: a bound of
    that of x0 consists of such terms. From AWM ("Advantage weighted matching", Xue et al., 2025, arXiv:2509.25050).

    Attributes:
        times: T.
        weight: w(t): "uniform" is 1; "t" or "t^2" gives copies with much noise more weight.
        share: the part of the schedule, counted from the noise, in which the levels t lie.
        shared_noise: whether the copies of a group's samples have the same noise e, too, as DGPO compares them.
    """

    times: Count = 4
    weight: Weight = "t"
    share: Annotated[float, Gt(0), Le(1)] = 1.0
    shared_noise: bool = False

    def check(self, *, sampler: Sampler, noise: float | None, step_weight: StepWeight, window: object = None) -> None:
        """Refuse what only denoising decisions have.

        Raises:
            UsageError: a window, a noise, a weight of steps, or a sampler with noise that is not the default.
        """
        remedies = []
        if window is not None:
            remedies.append("window: null")
        if noise is not None:
            remedies.append("noise: null")
        if sampler not in ("flow-sde", "ode"):
            remedies.append("sampler: ode")
        if step_weight != "none":
            remedies.append("step_weight: none")
        if remedies:
            raise UsageError(
                "With matching, samples are drawn by the ODE, and decisions are noised copies of the finished sample. "
                f"Set {' and '.join(remedies)}, or leave out matching."
            )

    def places(self, groups: Tensor) -> Tensor:
        """Where the levels of each group lie on a schedule from noise (0) to data (1): seeds [P] -> [P, T] fp64.

        One in each T-th of the share, in this order. The samples of a group share levels.
        """
        seeds = torch.tensor([mix(seed, _COPIES) for seed in groups.tolist()])
        places = torch.arange(self.times) + uniforms(seeds, self.times)
        return self.share * places / self.times

    def score(self, x0: Tensor, noise: Tensor, v: Tensor, t: Tensor) -> Decisions:
        """The scores of copies, with gradient to v.

        Args:
            x0: [b, t, ...] or [b, 1, ...], the finished samples.
            noise: [b, t, ...], that of each copy, as for `noised`.
            v: [b, t, ...], the network's velocities at the copies.
            t: broadcastable to them: the levels.

        Returns:
            scores [b, t] per dimension as log-probs, the predicted x0 as mean [b, t, ...], v_coef [b, t, 1, ...], and
            x0 as target [b, t, ...].
        """
        x0 = _at_least_fp32(x0)
        error = _at_least_fp32(v) - (_at_least_fp32(noise) - x0)
        t = _per_decision(t, error)
        weighted = t ** _POWERS[self.weight] * error.square()
        score = -weighted.flatten(2).mean(-1)  # [b, t, ...] -> [b, t]
        target = x0.expand_as(error)
        return Decisions(logprobs=score, mean=x0 - t * error, v_coef=-t, target=target)


def noised(x0: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    """The copies (1 - t) x0 + t noise of finished samples; t must broadcast against them."""
    t = t.to(noise, non_blocking=True)
    return (1 - t) * x0 + t * noise


def _euler_maruyama(t: Tensor, s: Tensor, *, g_squared: Tensor) -> Kernel:
    """The reverse SDE of a rectified flow with diffusion g, its score written through v."""
    d = t - s
    return Kernel(
        x_coef=1 - g_squared * d / (2 * t),
        v_coef=-(1 + g_squared * (1 - t) / (2 * t)) * d,
        std=(g_squared * d).sqrt(),
    )


def _sigmas(sigma: Sigma, sigma_next: Sigma) -> tuple[Tensor, Tensor]:
    t = torch.as_tensor(sigma, dtype=torch.float64)
    s = torch.as_tensor(sigma_next, dtype=torch.float64)
    falls = (s >= 0) & (s < t) & (t <= 1)
    if not bool(falls.all()):
        raise UsageError(
            f"In every step sigma must fall, from at most 1 to at least 0; got {t.tolist()} to {s.tolist()}."
        )
    return t, s


def _level(sampler: Sampler, noise: float) -> float:
    top = 1.0 if sampler == "cps" else math.inf
    if not 0 <= noise <= top or noise == math.inf:
        raise UsageError(f"The noise of {sampler!r} must be at least 0{' and at most 1' * (top == 1)}, got {noise}.")
    return noise


def _at_least_fp32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _per_decision(coef: Tensor, latents: Tensor) -> Tensor:
    """A coefficient in the dtype and on the device of the latents [b, t, ...]: [b, t, 1, ...]."""
    dimensions = [1] * (latents.ndim - 2)
    return coef.to(latents, non_blocking=True).expand(*latents.shape[:2], *dimensions)


def gaussian_logprobs(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log-density of Gaussian decisions per action dimension: x, mean [b, t, ...], std broadcastable -> [b, t].

    The *mean* over the dimensions, which published clip ranges assume: a sum over 65,536 of them has no usable fp32
    resolution. Computed in fp32 or better; std must be above 0, even under a mask.
    """
    x = _at_least_fp32(x)
    mean = _at_least_fp32(mean)
    std = _at_least_fp32(std)
    z = (x - mean) / std
    density = -z.square() / 2 - std.log() - math.log(2 * math.pi) / 2
    return density.flatten(2).mean(-1) if density.ndim > 2 else density
