"""toy-flow: a rectified flow over points of the plane that learns to land on the ring that its prompt asks for.

The smallest policy with the structure of a diffusion model: a network predicts velocities, a sampler walks from noise
to data, and every noisy step is a Gaussian decision of two dimensions. Training draws with a stochastic sampler from
`grpokit.flow`, evaluation follows the ODE. With `matching` training follows the ODE, too, and the decisions are noised
copies of the points. It starts as a flow that was taught a broad blob, whatever its prompt says.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from grpokit import (
    Ask,
    Decisions,
    Policy,
    Prompt,
    Rollout,
    Sample,
    Seeds,
    Trace,
    UsageError,
    flow,
    frozen_copy,
    swapped,
)
from grpokit.data import refuse_pictures
from grpokit.policy import join_decisions
from grpokit.reference import Average, Teachers, Twin
from grpokit.registry.settings import read_settings
from grpokit.sampling import normals, permutation
from grpokit_toy.autoregressive import load_weights, read_weights

START_FILE = Path(__file__).parent / "assets" / "toy-flow.safetensors"
DIMS = 2
HUNDREDTHS = range(70, 131)  # radii of the shipped prompts
SPLITS = {"train": 45, "eval": 16}
RADIUS = re.compile(r"radius\s+([0-9]+(?:\.[0-9]+)?)")


class Velocity(nn.Module):
    """v(x, sigma, radius): three hidden layers over the point and Fourier features of sigma."""

    octaves = 3

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(DIMS + 2 + 2 * self.octaves, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, DIMS),
        )

    def forward(self, x: Tensor, sigma: Tensor, radius: Tensor) -> Tensor:
        """Points [..., 2], sigmas [...] and radii [...] -> velocities [..., 2]."""
        level = sigma[..., None]
        octaves = 2.0 ** torch.arange(self.octaves, device=sigma.device)  # [F]
        angle = level * math.pi * octaves  # [..., F]
        ring = 4 * (radius[..., None] - 1)  # the range of the prompts, stretched to about -1 to 1
        features = torch.cat([x, ring, level, angle.sin(), angle.cos()], dim=-1)
        velocity: Tensor = self.layers(features.to(next(self.parameters()).dtype))
        return velocity


class ToyFlow(Policy):
    """A policy of `steps` Gaussian decisions in two dimensions; about nine thousand parameters.

    Args:
        weights: a safetensors file to begin from, such as policy.safetensors of a checkpoint; None for the start that
            ships with the package.
        sampler: "flow-sde", "dance-sde" or "cps", for training samples. With "ode" nothing is drawn but the start: for
            `matching`, and for `objective: opd`.
        noise: the sampler's noise level (see `grpokit.flow`); None for its default.
        step_weight: how much the policy loss of each step counts: "none", "guard", "tempflow" or "flash" (see
            `grpokit.flow.step_weights`).
        steps: of the sampler. Each is a decision, but for the last one of "cps", which has no noise.
        eval_steps: of the ODE in evaluation.
        shared_noise: a group's training samples start from the same noise, and differ by the steps' noise alone. Where
            samples follow the ODE, each has a start of its own, for the ODE would otherwise repeat itself.
        matching: decisions that are noised copies of a finished point, such as {"times": 4, "weight": "t"} (see
            `grpokit.flow.Matching`); then samples are drawn by the ODE. None: denoising steps are the decisions.
        old_ema: an average of the weights, such as {"decay": 0.5, "ramp": 0.001}, which draws training samples and is
            the objective's old policy; `every` is usually the updates of a step. None: the weights of the moment.
        teachers: files of weights as the reference, such as {"wide": "wide.safetensors"}. A prompt's `meta.teacher`
            names one; the others take them in turn. None: the reference is what the policy was built with.
    """

    def __init__(
        self,
        *,
        weights: str | Path | None = None,
        sampler: flow.Sampler = "flow-sde",
        noise: float | None = None,
        step_weight: flow.StepWeight = "none",
        steps: int = 10,
        eval_steps: int = 20,
        shared_noise: bool = False,
        matching: Mapping[str, Any] | None = None,
        old_ema: Mapping[str, Any] | None = None,
        teachers: Mapping[str, str] | None = None,
    ) -> None:
        self.net = _loaded(START_FILE if weights is None else Path(weights))
        self._old: Twin | None = None
        if old_ema is not None:
            average = read_settings(Average, old_ema, key="old_ema", example="{decay: 0.5, ramp: 0.001}")
            self._old = Twin(self.net, average=average, name="old").take()
        self._teachers: Teachers | None = None
        if teachers is not None:
            if not teachers:
                raise UsageError("teachers is empty. Name files of weights, or leave it out.")
            models = {name: _loaded(Path(file)) for name, file in teachers.items()}
            self._teachers = Teachers(models)
        self.reference_teaches = self._teachers is not None
        self.matching, self.steps = None, 0  # of the training sampler, those with noise
        if matching is None:
            self.steps = flow.decided_steps(sampler, steps, noise=noise)  # K, or K - 1 where the last step has no noise
        else:
            self.matching = read_settings(flow.Matching, matching, key="matching", example="{times: 4, weight: t}")
            self.matching.check(sampler=sampler, noise=noise, step_weight=step_weight)
        self.decisions = self.matching.times if self.matching else self.steps  # T
        sigmas = flow.linear_sigmas(steps)
        here, there = sigmas[:-1, None], sigmas[1:, None]  # [K, 1]
        self.decided = flow.kernel(sampler, here, there, noise=noise)  # [K, 1] each
        self.weights = flow.step_weights(step_weight, self.decided, here - there)  # [K, 1]
        self.sampler, self.noise = sampler, noise
        self.sigmas, self.eval_sigmas = sigmas, flow.linear_sigmas(eval_steps)
        self.shared_noise = shared_noise
        self._frozen: Velocity | None = None

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        """Draw `group_size` points per prompt; in evaluation by the ODE, which decides nothing: T is 0."""
        matching = None if evaluate else self.matching
        device = self._weight.device
        seeds = seeds.to(device)
        sigmas = self.eval_sigmas if evaluate else self.sigmas
        decisions, noisy = (0, 0) if evaluate else (self.decisions, self.steps)
        radii = torch.tensor([prompt_radius(prompt) for prompt in prompts], dtype=torch.float64)
        radii = radii.to(device, self._dtype, non_blocking=True)
        radius = radii.repeat_interleave(group_size)  # [P] -> [B]
        noise = normals(seeds.row, (1 + decisions) * DIMS).to(self._dtype)
        noise = noise.unflatten(1, (-1, DIMS))  # [B, 1 + T, 2]
        if matching is not None and matching.shared_noise:
            shared = normals(seeds.group, (1 + decisions) * DIMS).to(self._dtype)
            shared = shared.unflatten(1, (-1, DIMS)).repeat_interleave(group_size, 0)  # [P, ...] -> [B, 1 + T, 2]
            noise = torch.cat([noise[:, :1], shared[:, 1:]], dim=1)
        x = noise[:, 0]
        if self.shared_noise and noisy and self.sampler != "ode":
            x = normals(seeds.group, DIMS).to(self._dtype).repeat_interleave(group_size, 0)  # [P, 2] -> [B, 2]
        latents, views = [x], []
        old = None if evaluate else self._old
        with torch.no_grad(), nullcontext() if old is None else self._drawing_with(old):
            for k in range(len(sigmas) - 1):
                here = latents[-1][:, None]  # [B, 1, 2]
                v = self._velocity(here, sigmas[k : k + 1], radius)
                if k < noisy:
                    step = self._kernel(slice(k, k + 1))
                    there = flow.draw(step, here, v, noise[:, k + 1, None])
                    views.append(self._view(step, here, v, there))
                else:
                    # the ODE, and the step of 'cps' to sigma 0: its estimate of the clean point, which Euler gives too
                    there, _ = flow.ode(sigmas[k], sigmas[k + 1]).moments(here, v)
                latents.append(there[:, 0])
            copies: dict[str, Tensor] = {}
            if matching is not None:
                levels = (1 - matching.places(seeds.group)).to(x)  # [P, T]: the schedule falls from 1 to 0
                copies = {"noise": noise[:, 1:], "levels": levels.repeat_interleave(group_size, 0)}  # [B, T, 2], [B, T]
                views = [self._matched(latents[-1], **copies, radius=radius)]
        groups = seeds.group_ids.repeat_interleave(group_size)
        prompt_of_row = [prompt for prompt in prompts for _ in range(group_size)]
        samples = _samples(prompt_of_row, groups, latents[-1], radius)
        empty = torch.zeros(len(samples), 0, dtype=self._dtype, device=device)
        weights = self.weights
        if weights is not None:
            weights = weights[:decisions, 0].to(empty).expand(len(samples), -1)  # [K, 1] -> [B, T]
        return Rollout(
            samples=samples,
            groups=groups,
            old=replace(join_decisions(views, dim=1), target=None) if views else Decisions(logprobs=empty),
            mask=torch.ones(len(samples), decisions, dtype=torch.bool, device=device),
            max_decisions=self.decisions,
            action_dims=DIMS,
            weights=weights,
            averaged=old is not None,
            trace=Trace(
                per_row={"latents": torch.stack(latents, dim=1), **copies},  # [B, K + 1, 2], from noise to the output
                per_group={"radius": radii[seeds.group_ids.argsort()]},
            ),
        )

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = Ask()) -> Decisions:
        """Score the stored decisions again: log-probs [b, t] with gradient, mean [b, t, 2] and std [b, t, 1]."""
        if self._teachers is not None and self._teachers.asked:
            return self._teachers.score(rollout, partial(self._scored_by, steps=steps))
        start, stop, _ = steps.indices(rollout.mask.shape[1])
        steps = slice(start, max(start, stop))
        device = self._weight.device
        stored = {name: x.to(device) for name, x in rollout.trace.per_row.items()}
        index = rollout.group_index.to(device, non_blocking=True)
        radius = rollout.trace.per_group["radius"].to(stored["latents"])[index]  # [p] -> [b]
        if self.matching is not None:
            noise, levels = stored["noise"][:, steps], stored["levels"][:, steps]
            return self._matched(stored["latents"][:, -1], noise, levels, radius)
        latents = stored["latents"][:, start : steps.stop + 1]
        here, there = latents[:, :-1], latents[:, 1:]  # [b, t, 2]
        v = self._velocity(here, self.sigmas[steps], radius)
        return self._view(self._kernel(steps), here, v, there)

    def slices(self, rollout: Rollout) -> list[slice]:
        """One slice per step, as a large denoiser needs it."""
        return [slice(k, k + 1) for k in range(rollout.mask.shape[1])]

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, `logprobs` uses the weights that the policy was built with, or the teachers."""
        if self._teachers is not None:
            with self._teachers.inside():
                yield
            return
        reference = self._reference_net().to(self._weight.device)
        with swapped(self, "net", reference):
            yield

    def _scored_by(self, teacher: nn.Module, rollout: Rollout, *, steps: slice) -> Decisions:
        with swapped(self, "net", teacher.to(self._weight.device)):
            return self.logprobs(rollout, steps)

    @contextmanager
    def _drawing_with(self, average: Twin) -> Iterator[None]:
        with average.model() as net, swapped(self, "net", net):
            yield

    def updated(self, version: int) -> None:
        """Let the average follow."""
        if self._old is not None:
            self._old.updated(version)

    def modules(self) -> Mapping[str, nn.Module]:
        """The one network."""
        return {"net": self.net}

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Read the radius that each prompt names, and whether its teacher is there."""
        refuse_pictures(prompts, "this policy")
        if self._teachers is not None:
            self._teachers.check(prompts)
        for prompt in prompts:
            prompt_radius(prompt)

    def state_dict(self) -> dict[str, Any]:
        """The network's weights, and the average."""
        average = {} if self._old is None else self._old.state_dict()
        return {**self.net.state_dict(), **average}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take over weights; the reference stays what the policy was built with, as resuming a run needs it."""
        if self._teachers is None:
            self._reference_net()
        if self._old is not None:
            self._old.load_state_dict(state)
        own = {name: x for name, x in state.items() if not name.startswith("old")}
        load_weights(self.net, own)

    @property
    def _weight(self) -> Tensor:
        return next(self.net.parameters())

    @property
    def _dtype(self) -> torch.dtype:
        """Of latents, drawn and stored and scored: fp32 or better, whatever the network computes in."""
        return torch.promote_types(self._weight.dtype, torch.float32)

    def _matched(self, x0: Tensor, noise: Tensor, levels: Tensor, radius: Tensor) -> Decisions:
        """The scores of copies of points x0 [b, 2], with noise [b, t, 2] at levels [b, t]."""
        assert self.matching is not None
        points, t = x0[:, None], levels[..., None]
        v = self._velocity(flow.noised(points, noise, t), levels, radius)
        return self.matching.score(points, noise, v, t)

    def _view(self, step: flow.Kernel, here: Tensor, v: Tensor, there: Tensor) -> Decisions:
        """The view of steps; those of the ODE have no density."""
        return flow.predict(step, here, v) if self.sampler == "ode" else flow.score(step, here, v, there)

    def _velocity(self, x: Tensor, sigmas: Tensor, radius: Tensor) -> Tensor:
        """Latents [b, t, 2] at sigmas [t] or [b, t] for rings of radius [b] -> [b, t, 2]."""
        shape = x.shape[:2]
        level = sigmas.to(x, non_blocking=True).expand(shape)
        velocity: Tensor = self.net(x, level, radius[:, None].expand(shape))
        return velocity

    def _kernel(self, steps: slice) -> flow.Kernel:
        whole = self.decided
        return flow.Kernel(x_coef=whole.x_coef[steps], v_coef=whole.v_coef[steps], std=whole.std[steps])

    def _reference_net(self) -> Velocity:
        if self._frozen is None:  # first use, so before the first update: runs without a reference pay nothing
            self._frozen = frozen_copy(self.net)
        return self._frozen


def _loaded(file: Path) -> Velocity:
    """A network with the weights of a file."""
    net = Velocity().eval()
    read_weights(net, file)
    return net


class Point(tuple[float, float]):
    """A point (x, y) that remembers the ring it was asked for, so that notebooks and reports can show it.

    Attributes:
        radius: of the ring.
    """

    radius: float

    def __new__(cls, xy: Sequence[float], *, radius: float = 1.0) -> Point:
        """Make a point of two numbers."""
        point = super().__new__(cls, xy)
        point.radius = radius
        return point

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        picture = draw_points([self], self.radius, size=96, dot=3)
        picture.save(out, format="PNG")
        return out.getvalue()


def _samples(prompts: Sequence[Prompt], groups: Tensor, points: Tensor, radius: Tensor) -> list[Sample]:
    """What B rows have drawn: groups, radius [B], points [B, 2]; None for a point that is not finite."""
    samples = []
    for prompt, group, xy, wanted in zip(prompts, groups.tolist(), points.tolist(), radius.tolist(), strict=True):
        point = Point(xy, radius=wanted) if all(map(math.isfinite, xy)) else None
        samples.append(Sample(prompt=prompt, output=point, group=group))
    return samples


def on_ring(samples: Sequence[Sample], *, width: float = 0.15) -> list[float]:
    """1 for a point whose distance from the origin is within `width` of the radius that the prompt asks for, else 0.

    Args:
        samples: with points (x, y) as outputs.
        width: half the thickness of the ring.
    """
    scores = []
    for sample in samples:
        distance = math.hypot(*_point(sample)) - prompt_radius(sample.prompt)
        scores.append(float(abs(distance) <= width))
    return scores


def ring_prompts(split: str = "train", limit: int | None = None) -> list[Prompt]:
    """Prompts such as 'a ring of radius 0.85', in a fixed mixed order; the splits share no radius.

    Args:
        split: "train" (45 radii) or "eval" (16).
        limit: only the first so many; None for all.
    """
    if split not in SPLITS:
        raise UsageError(f"toy-flow has the splits {', '.join(SPLITS)}; got {split!r}.")
    start = 0 if split == "train" else SPLITS["train"]
    radii = _radii()[start : start + SPLITS[split]]
    return [Prompt(text=f"a ring of radius {radius / 100:.2f}") for radius in radii[:limit]]


@lru_cache(maxsize=1)
def _radii() -> list[int]:
    return [HUNDREDTHS[i] for i in permutation(len(HUNDREDTHS), 3)]


def prompt_radius(prompt: Prompt) -> float:
    """The radius that a prompt names.

    Raises:
        UsageError: it names none, or 0.
    """
    found = RADIUS.search(prompt.text)
    if found is None or not float(found[1]) > 0:
        raise UsageError(
            f"toy-flow reads prompts that name a radius above 0, such as 'a ring of radius 1.0'; got {prompt.text!r}."
        )
    return float(found[1])


def draw_points(
    points: Sequence[tuple[float, float]], radius: float, *, size: int = 192, dot: float = 1
) -> Image.Image:
    """A picture of points of the square from -2 to 2 over the ring that was asked for.

    Args:
        points: (x, y), y upwards.
        radius: of the ring.
        size: of the picture, in pixels.
        dot: radius of a point, in pixels.
    """
    picture = Image.new("RGB", (size, size), "white")
    pen = ImageDraw.Draw(picture)
    scale, middle = size / 4, size / 2
    low, high = middle - radius * scale, middle + radius * scale
    pen.ellipse([low, low, high, high], outline="silver")
    for x, y in points:
        px, py = middle + x * scale, middle - y * scale
        pen.ellipse([px - dot, py - dot, px + dot, py + dot], fill="navy")
    return picture


def _point(sample: Sample) -> tuple[float, float]:
    output = sample.output
    if not isinstance(output, tuple) or len(output) != DIMS:
        raise UsageError(f"The reward 'ring' scores points (x, y); got {type(output).__name__} {str(output)[:40]!r}.")
    return output
