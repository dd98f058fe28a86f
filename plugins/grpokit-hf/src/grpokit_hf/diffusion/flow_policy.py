"""A policy over the denoising steps of a flow-matching pipeline.

A network predicts velocities, a stochastic sampler of `grpokit.flow` walks from noise to a latent, and each noisy step
is a Gaussian decision of C * H * W dimensions. Training may draw only a window of steps at random and follow the ODE
before and behind it. A group shares what comes before the window: its noise, and the ODE's path from there. With
`matching` training follows the ODE, too, and noised copies of the finished latent are the decisions. Evaluation always
follows the ODE, with steps, guidance and size of its own. What a pipeline is like, its `Family` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from PIL.Image import Image
from safetensors import SafetensorError
from torch import Tensor, nn

from grpokit import flow
from grpokit.errors import UsageError, one_line
from grpokit.policy import Policy, joined
from grpokit.reference import swapped
from grpokit.types import Ask, Decisions, Prompt, Rollout, Sample, Seeds, Trace
from grpokit_hf.diffusion.adapters import add_adapter
from grpokit_hf.diffusion.family import Family, Schedule, Size
from grpokit_hf.diffusion.latents import noise
from grpokit_hf.diffusion.settings import FlowSettings
from grpokit_hf.diffusion.trained_lora import continue_lora, find_lora
from grpokit_hf.models.adapters import AdapterSettings, inner
from grpokit_hf.models.blocks import compile_blocks
from grpokit_hf.models.quantized import check_trainable, steady
from grpokit_hf.models.references import Base, Reference, Twin, is_copied
from grpokit_hf.models.weights import load_weights, tensors_of

_ASK = Ask()
_LEVELS = 1000  # of noise in the schedule that copies are taken from; pipelines are trained with as many


@dataclass(frozen=True, kw_only=True)
class _Mode:
    """How latents are cleaned, in training or in evaluation."""

    steps: int
    guidance: float
    size: Size
    schedule: Schedule


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """The G samples of a prompt.

    Attributes:
        latents: [G, T + 1, ...], the starts of the decided steps, and the end of the last one; with `matching`
            [G, 1, ...], the finished ones.
        old: the decisions, [G, T].
        steps: T, the places of the decisions in their schedule.
        pictures: G.
    """

    latents: Tensor
    old: Decisions
    steps: list[int]
    pictures: Sequence[Image | None]


class FlowPolicy(Policy):
    """A diffusion transformer whose denoising steps are decisions.

    Args:
        family: the pipeline.
        size: height and width of the pictures in pixels.
        steps: of denoising in training samples.
        guidance: of training samples, the same in drawing and in scoring; 1 leaves the second pass out.
        sampler: "flow-sde", "dance-sde" or "cps".
        noise: the sampler's noise level (see `grpokit.flow`); None for its default.
        window: which steps are decisions, such as {"width": 2}; None: all that have noise.
        step_weight: how much the policy loss of each step counts: "none", "guard", "tempflow" or "flash" (see
            `grpokit.flow.step_weights`).
        matching: decisions that are noised copies of a finished sample, such as {"times": 4, "weight": "t"} (see
            `grpokit.flow.Matching`); then samples are drawn by the ODE. None: denoising steps are the decisions.
        shared_noise: a group's training samples begin with the same noise, and differ by the steps' noise alone; with
            `matching` each begins with its own.
        eval_steps: of the ODE in evaluation.
        eval_guidance: in evaluation; None for `guidance`.
        eval_size: of the pictures in evaluation; None for `size`.
        lora: settings of an adapter, such as {"r": 32, "alpha": 64}, or {"adapter": "a.safetensors"} to train one on;
            None trains the transformer's own weights.
        ema: an average of the trained weights, such as {"decay": 0.9, "every": 8}, which evaluations draw with.
        reference_ema: let the reference follow the policy, such as {"decay": 0, "every": 50}; None: it stays.
        rows: the most pictures in one pass of the transformer while drawing; None for a whole group.
        compiled: compile the transformer's blocks with `torch.compile`, which takes a minute or two at the first pass.

    Attributes:
        model: what trains: the transformer, or the adapter around it.

    Raises:
        UsageError: a setting cannot be used.
    """

    cut_by = "one group"  # the transformer is called with the condition of one prompt

    def __init__(
        self,
        family: Family,
        *,
        size: Sequence[int],
        steps: int = 10,
        guidance: float = 1.0,
        sampler: flow.Sampler = "flow-sde",
        noise: float | None = None,
        window: Mapping[str, Any] | None = None,
        matching: Mapping[str, Any] | None = None,
        step_weight: flow.StepWeight = "none",
        shared_noise: bool = True,
        eval_steps: int = 40,
        eval_guidance: float | None = None,
        eval_size: Sequence[int] | None = None,
        lora: Mapping[str, Any] | None = None,
        ema: Mapping[str, Any] | None = None,
        reference_ema: Mapping[str, Any] | None = None,
        rows: int | None = None,
        compiled: bool = False,
    ) -> None:
        settings = FlowSettings.read(
            steps=steps,
            eval_steps=eval_steps,
            sampler=sampler,
            noise=noise,
            window=window,
            matching=matching,
            step_weight=step_weight,
            lora=lora,
            ema=ema,
            reference_ema=reference_ema,
            guidance=guidance,
            eval_guidance=eval_guidance,
            rows=rows,
        )
        if any(isinstance(module, BaseTunerLayer) for module in family.transformer.modules()):
            raise UsageError(
                f"The {type(family.transformer).__name__} has an adapter in it, maybe of an earlier policy. Load the "
                "model again, or merge the adapter into it first."
            )
        self.family = family
        self._training = self._mode(steps, guidance, size, key="size")
        self._evaluation = self._mode(
            eval_steps,
            guidance if eval_guidance is None else eval_guidance,
            size if eval_size is None else eval_size,
            key="eval_size",
        )
        sigmas = self._training.schedule.sigmas
        self._kernel = flow.kernel(sampler, sigmas[:-1], sigmas[1:], noise=noise)  # [K] each
        self._weights = flow.step_weights(step_weight, self._kernel, sigmas[:-1] - sigmas[1:])  # [K]
        self._settings, self._matching = settings, settings.matching
        self._copies = self._training  # whose schedule has the levels of noised copies
        if self._matching is not None:
            self._copies = self._mode(_LEVELS, guidance, size, key="size")
        self._shared_noise, self._rows = shared_noise, rows
        self.model: Any = family.transformer.eval()
        steady(self.model)
        if settings.adapter is None:
            check_trainable(type(self.model).__name__, self.model)
            self.model.requires_grad_(True)
        elif settings.adapter.adapter is not None:
            self.model = self._continued(settings.adapter)
        else:
            self.model.requires_grad_(False)
            targets = settings.adapter.targets if lora is not None and "targets" in lora else family.lora_targets
            self.model = add_adapter(family.transformer, settings.adapter, targets)
        copied = is_copied(settings.adapter, settings.reference)
        self._reference: Reference = Twin(self.model, average=settings.reference) if copied else Base(self.model)
        self.reference_moves = settings.reference is not None
        if compiled:
            compile_blocks(self.model)
        self._average = None if settings.average is None else Twin(self.model, average=settings.average, name="average")
        if self._average is not None:
            with self._average.model():  # which takes its copy before any update
                pass

    @property
    def device(self) -> torch.device:
        """Where the transformer is."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that the pipeline cannot read."""
        self.family.check(prompts)

    @torch.no_grad()
    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        """Draw `group_size` pictures per prompt, group by group; in evaluation by the ODE, which decides nothing."""
        seeds = seeds.to("cpu")
        shared = self.family.shared(prompts, seeds, evaluate=evaluate)
        with self.averaged() if evaluate else nullcontext():
            drawn = [
                self._draw(
                    prompt,
                    {name: x[i] for name, x in shared.items()},
                    rows=seeds.row[i * group_size :][:group_size],
                    group=seeds.group[i : i + 1],
                    step=seeds.step,
                    evaluate=evaluate,
                )
                for i, prompt in enumerate(prompts)
            ]
        groups = seeds.group_ids.repeat_interleave(group_size)
        pictures = [picture for group in drawn for picture in group.pictures]
        samples = [
            Sample(prompt=prompts[row // group_size], output=picture, group=int(groups[row]))
            for row, picture in enumerate(pictures)
        ]
        order = seeds.group_ids.argsort()
        decided = torch.cat([group.old.logprobs for group in drawn])
        steps = torch.tensor([group.steps for group in drawn], dtype=torch.int64)  # [P, T]
        return Rollout(
            samples=samples,
            groups=groups,
            old=joined([group.old for group in drawn], dim=0),
            mask=torch.ones_like(decided, dtype=torch.bool),
            max_decisions=self._settings.decisions,
            action_dims=math.prod(self.family.latent_shape(self._training.size)),
            weights=None
            if self._weights is None
            else self._weights[steps].to(decided).repeat_interleave(group_size, 0),
            trace=Trace(
                per_row={
                    "latents": torch.cat([group.latents for group in drawn]),
                    **({"seeds": seeds.row} if self._matching else {}),
                },
                per_group={
                    "steps": steps[order],
                    **{name: x[order.to(x.device)] for name, x in shared.items()},
                },
            ),
        )

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = _ASK) -> Decisions:
        """Score the stored decisions again, group by group: log-probs [b, t] with the moments of each."""
        latents, shared = rollout.trace.per_row["latents"], dict(rollout.trace.per_group)
        parts, order = [], []
        for place, own_steps in enumerate(shared.pop("steps").tolist()):
            rows = (rollout.group_index == place).nonzero()[:, 0]
            prompt = rollout.samples[int(rows[0])].prompt
            own = {name: x[place] for name, x in shared.items()}
            condition = self.family.condition(prompt, self._training.size, own)
            here = latents[rows.to(latents.device, non_blocking=True)].to(self.device)
            seeds = rollout.trace.per_row["seeds"][rows] if self._matching else None
            which = range(len(own_steps))[steps]
            views = [self._score(here, seeds, t, own_steps[t], condition) for t in which]
            parts.append(joined(views, dim=1))
            order.append(rows)
        return joined(parts, dim=0).select(torch.cat(order).argsort().to(self.device, non_blocking=True))

    def slices(self, rollout: Rollout) -> list[slice]:
        """One slice per step: its graph is that of a forward pass of the transformer."""
        return [slice(k, k + 1) for k in range(rollout.mask.shape[1])]

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, `logprobs` uses the base without its adapter, or the copy that full training is held to."""
        with self._reference.model() as model, swapped(self.family, "transformer", inner(model)):
            yield

    def updated(self, version: int) -> None:
        """Tell the reference and the average."""
        self._reference.updated(version)
        if self._average is not None:
            self._average.updated(version)

    def modules(self) -> Mapping[str, nn.Module]:
        """The transformer, with its adapter."""
        return {"transformer": self.model}

    def state_dict(self) -> dict[str, Any]:
        """What trains: the adapter, or the transformer; and the average."""
        average = {} if self._average is None else self._average.state_dict()
        return {**tensors_of(self.model), **self._reference.state_dict(), **average}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Load what `state_dict` returned."""
        self._reference.load_state_dict(state)
        if self._average is not None:
            self._average.load_state_dict(state)
        load_weights(self.model, state)

    def _mode(self, steps: int, guidance: float, size: Any, *, key: str) -> _Mode:
        """The settings of training or of evaluation, with the pipeline's schedule for them."""
        whole = isinstance(size, Sequence) and not isinstance(size, str) and all(type(side) is int for side in size)
        multiple = self.family.multiple
        if not whole or len(size) != 2 or any(side < multiple or side % multiple for side in size):
            raise UsageError(
                f"{key} must be height and width in pixels, both positive multiples of {multiple}, such as "
                f"{[32 * multiple, 32 * multiple]}; got {size!r}."
            )
        both = (size[0], size[1])
        return _Mode(steps=steps, guidance=guidance, size=both, schedule=self.family.schedule(steps, both))

    def _continued(self, settings: AdapterSettings) -> PeftModel:
        """The transformer with a LoRA that was trained before."""
        assert settings.adapter is not None
        file = find_lora(settings.adapter, revision=settings.revision)
        try:
            lora = self.family.lora_of(file)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
            raise UsageError(f"lora: adapter: '{file}' cannot be read: {one_line(error)}.") from error
        self.model.requires_grad_(False)
        return continue_lora(self.family.transformer, lora, name=str(settings.adapter))

    @contextmanager
    def averaged(self) -> Iterator[Any]:
        """Inside, pictures are drawn with the average of the weights, if there is one. Yields the model."""
        if self._average is None:
            yield self.model
            return
        with self._average.model() as model, swapped(self.family, "transformer", inner(model)):
            yield model

    def _draw(
        self,
        prompt: Prompt,
        shared: Mapping[str, Tensor],
        *,
        rows: Tensor,
        group: Tensor,
        step: int,
        evaluate: bool,
    ) -> _Drawn:
        """The samples of a prompt: seeds of its rows [G] and of itself [1]."""
        mode = self._evaluation if evaluate else self._training
        window, matching = (None, None) if evaluate else (self._settings.window, self._matching)
        width = window.width if window else 0
        first = window.first(int(group), step=step, decisions=self._settings.able) if window else 0
        condition = self.family.condition(prompt, mode.size, shared)
        x = self._noise(group if window and self._shared_noise else rows, 0, mode.size)
        for k in range(first):  # with shared noise one path for the group
            x = self._ode_step(x, k, condition, mode)
        x = x.expand(len(rows), *x.shape[1:])
        latents, views = [x], []
        for k in range(first, first + width):
            v, kernel = self._velocity(x, k, condition, mode), self._kernel_of(k)
            there = flow.draw(kernel, x[:, None], v[:, None], self._noise(rows, 1 + k, mode.size)[:, None])
            views.append(flow.score(kernel, x[:, None], v[:, None], there))
            x = there[:, 0]
            latents.append(x)
        for k in range(first + width, mode.steps):
            x = self._ode_step(x, k, condition, mode)
        steps = list(range(first, first + width))
        if matching is not None:
            latents, steps = [x], (matching.places(group)[0] * _LEVELS).long().tolist()
            some = self._rows or len(rows)
            parts = list(zip(x[:, None].split(some), rows.split(some), strict=True))
            views = [
                joined([self._score(x0, seeds, t, k, condition) for x0, seeds in parts], dim=0)
                for t, k in enumerate(steps)
            ]
        old = joined(views, dim=1) if views else Decisions(logprobs=torch.zeros(len(rows), 0, device=x.device))
        pictures = self.family.pictures(x, mode.size)
        latent = torch.stack(latents, dim=1)
        return _Drawn(latents=latent, old=replace(old, target=None), steps=steps, pictures=pictures)

    def _score(self, latents: Tensor, seeds: Tensor | None, t: int, k: int, condition: Any) -> Decisions:
        """The log-probs of decision t, at place k of its schedule, of rows with their latents; a copy has seeds [b]."""
        mode = self._copies
        if self._matching is not None and seeds is not None:
            x0, level = latents[:, 0], mode.schedule.sigmas[k]
            noise = self._noise(seeds, 1 + t, mode.size)
            copies = flow.noised(x0, noise, level)
            v = self.family.velocity(copies, mode.schedule.times[k], condition, guidance=mode.guidance)
            return self._matching.score(x0[:, None], noise[:, None], v[:, None], level)
        x, there = latents[:, t : t + 1], latents[:, t + 1 : t + 2]
        v = self.family.velocity(x[:, 0], mode.schedule.times[k], condition, guidance=mode.guidance)
        return flow.score(self._kernel_of(k), x, v[:, None], there)

    def _velocity(self, x: Tensor, k: int, condition: Any, mode: _Mode) -> Tensor:
        """The velocities of latents [n, ...] at step k, a few rows at a time."""
        some = x.split(self._rows or len(x))
        time = mode.schedule.times[k]
        return torch.cat([self.family.velocity(part, time, condition, guidance=mode.guidance) for part in some])

    def _ode_step(self, x: Tensor, k: int, condition: Any, mode: _Mode) -> Tensor:
        v, sigmas = self._velocity(x, k, condition, mode), mode.schedule.sigmas
        mean, _ = flow.ode(sigmas[k], sigmas[k + 1]).moments(x, v)
        return mean

    def _kernel_of(self, k: int) -> flow.Kernel:
        """The kernel of one step, with scalars."""
        own = self._kernel
        return flow.Kernel(x_coef=own.x_coef[k], v_coef=own.v_coef[k], std=own.std[k])

    def _noise(self, seeds: Tensor, index: int, size: Size) -> Tensor:
        return noise(seeds, self.family.latent_shape(size), index=index, device=self.device)
