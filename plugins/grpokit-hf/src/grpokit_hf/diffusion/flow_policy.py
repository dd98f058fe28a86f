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
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from PIL.Image import Image
from safetensors import SafetensorError
from torch import Tensor, nn

from grpokit import flow
from grpokit.errors import UsageError, one_line
from grpokit.policy import Policy, join_decisions
from grpokit.reference import Average, Twin, swapped
from grpokit.types import Ask, Decisions, Prompt, Rollout, Sample, Seeds, Trace
from grpokit_hf.diffusion.adapters import adapted
from grpokit_hf.diffusion.family import Family, Schedule, Size
from grpokit_hf.diffusion.latents import noise
from grpokit_hf.diffusion.settings import FlowSettings
from grpokit_hf.diffusion.trained_lora import LoraFile, continue_lora
from grpokit_hf.models.adapters import inner
from grpokit_hf.models.blocks import compile_blocks
from grpokit_hf.models.quantized import check_trainable, steady
from grpokit_hf.models.teachers import bring_beside
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
        family: the pipeline, loaded.
        settings: of the policy. The caller finds and loads the pipeline.

    Attributes:
        family (Family): the pipeline.
        settings (FlowSettings): of the policy.
        model: what trains: the transformer, or the adapter around it.

    Raises:
        UsageError: a setting does not fit the pipeline.
    """

    cut_by = "one group"  # the transformer is called with the condition of one prompt

    def __init__(self, family: Family, settings: FlowSettings) -> None:
        if any(isinstance(module, BaseTunerLayer) for module in family.transformer.modules()):
            raise UsageError(
                f"The {type(family.transformer).__name__} has an adapter in it, maybe of an earlier policy. Load the "
                "model again, or merge the adapter into it first."
            )
        self.family, self.settings = family, settings
        self._training = self._training_mode()
        self._evaluation = self._evaluation_mode()
        training = self._training
        self._copies = training  # whose schedule has the levels of noised copies
        if settings.copies is not None:
            self._copies = self._mode(_LEVELS, training.guidance, training.size, key="size")
        sigmas = training.schedule.sigmas
        before, behind = sigmas[:-1], sigmas[1:]
        self._kernel = flow.kernel(settings.sampler, before, behind, noise=settings.noise)  # [K] each
        self._weights = flow.step_weights(settings.step_weight, self._kernel, before - behind)  # [K]
        self._teachers = settings.teachers_of(family.transformer.eval().requires_grad_(False), self._taught)
        self.model: Any = self._learner()
        self._reference = settings.reference_of(self.model)
        self.reference_moves = settings.reference is not None
        self.reference_teaches = self._teachers is not None or settings.reference_guidance is not None
        if settings.compiled:
            compile_blocks(self.model)
        self._average = self._averaging(settings.average, "average")
        self._old = self._averaging(settings.old_average, "old")

    @property
    def size(self) -> Size:
        """Height and width of the training samples in pixels."""
        return self._training.size

    @property
    def device(self) -> torch.device:
        """Where the transformer is."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that the pipeline cannot read, or that name a teacher that is not there."""
        self.family.check(prompts)
        if self._teachers is not None:
            self._teachers.check(prompts)

    @torch.no_grad()
    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        """Draw `group_size` pictures per prompt, group by group; in evaluation by the ODE, which decides nothing."""
        seeds = seeds.to("cpu")
        shared = self.family.shared(prompts, seeds, evaluate=evaluate)
        drawn: list[_Drawn] = []
        average = self._average if evaluate else self._old
        with self._drawing_with(average):
            for i, prompt in enumerate(prompts):
                own = {name: x[i] for name, x in shared.items()}
                rows = seeds.row[i * group_size :][:group_size]
                group = seeds.group[i : i + 1]
                drawn.append(self._draw(prompt, own, rows=rows, group=group, step=seeds.step, evaluate=evaluate))
        samples: list[Sample] = []
        for prompt, number, written in zip(prompts, seeds.group_ids.tolist(), drawn, strict=True):
            samples += [Sample(prompt=prompt, output=picture, group=number) for picture in written.pictures]
        order = seeds.group_ids.argsort()
        old = join_decisions([each.old for each in drawn], dim=0)
        steps = torch.tensor([each.steps for each in drawn], dtype=torch.int64)  # [P, T]
        weights = None
        if self._weights is not None:
            weights = self._weights[steps].to(old.logprobs).repeat_interleave(group_size, 0)
        per_row = {"latents": torch.cat([each.latents for each in drawn])}
        if self.settings.copies:
            per_row["seeds"] = self._copy_seeds(seeds.row, seeds.group.repeat_interleave(group_size))
        per_group = {"steps": steps[order]}
        for name, x in shared.items():
            per_group[name] = x[order.to(x.device)]
        return Rollout(
            samples=samples,
            groups=seeds.group_ids.repeat_interleave(group_size),
            old=old,
            mask=torch.ones_like(old.logprobs, dtype=torch.bool),
            max_decisions=self.settings.decisions,
            action_dims=math.prod(self.family.latent_shape(self._training.size)),
            weights=weights,
            averaged=average is not None and not evaluate,
            trace=Trace(per_row=per_row, per_group=per_group),
        )

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = _ASK) -> Decisions:
        """Score the stored decisions again, group by group: log-probs [b, t] with the moments of each."""
        if self._teachers is not None and self._teachers.asked:
            return self._teachers.score(rollout, partial(self._scored_by, steps=steps))
        latents, shared = rollout.trace.per_row["latents"], dict(rollout.trace.per_group)
        parts, order = [], []
        for place, own_steps in enumerate(shared.pop("steps").tolist()):
            rows = (rollout.group_index == place).nonzero()[:, 0]
            prompt = rollout.samples[int(rows[0])].prompt
            own = {name: x[place] for name, x in shared.items()}
            condition = self.family.condition(prompt, self._training.size, own)
            here = latents[rows.to(latents.device, non_blocking=True)].to(self.device)
            seeds = rollout.trace.per_row["seeds"][rows] if self.settings.copies else None
            which = range(len(own_steps))[steps]
            views = [self._score(here, seeds, t, own_steps[t], condition) for t in which]
            parts.append(join_decisions(views, dim=1))
            order.append(rows)
        back = torch.cat(order).argsort()
        return join_decisions(parts, dim=0).select(back.to(self.device, non_blocking=True))

    def slices(self, rollout: Rollout) -> list[slice]:
        """One slice per step: its graph is that of a forward pass of the transformer."""
        _, decisions = rollout.mask.shape
        return [slice(k, k + 1) for k in range(decisions)]

    def _scored_by(self, teacher: nn.Module, rollout: Rollout, *, steps: slice) -> Decisions:
        bring_beside(teacher, self.device)
        with self._swapped(teacher):
            return self.logprobs(rollout, steps)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, `logprobs` uses the base without its adapter, a copy of what trains, or the teachers."""
        guidance = self.settings.reference_guidance
        mode = self._training if guidance is None else replace(self._training, guidance=guidance)
        copies = self._copies if guidance is None else replace(self._copies, guidance=guidance)
        with swapped(self, "_training", mode), swapped(self, "_copies", copies):
            if self._teachers is not None:
                with self._teachers.inside():
                    yield
            else:
                with self._reference.model() as model, self._swapped(model):
                    yield

    def _swapped(self, model: Any) -> AbstractContextManager[None]:
        """Inside, the family has another transformer."""
        return swapped(self.family, "transformer", inner(model))

    def updated(self, version: int) -> None:
        """Tell the reference and the averages."""
        self._reference.updated(version)
        for average in self._averages:
            average.updated(version)

    def modules(self) -> Mapping[str, nn.Module]:
        """The transformer, with its adapter."""
        return {"transformer": self.model}

    def state_dict(self) -> dict[str, Any]:
        """What trains: the adapter, or the transformer; and the averages."""
        state = {**tensors_of(self.model), **self._reference.state_dict()}
        for average in self._averages:
            state |= average.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Load what `state_dict` returned."""
        self._reference.load_state_dict(state)
        for average in self._averages:
            average.load_state_dict(state)
        load_weights(self.model, state)

    @property
    def _averages(self) -> list[Twin]:
        """The averages of the weights."""
        return [each for each in (self._average, self._old) if each is not None]

    def _averaging(self, how: Average | None, name: str) -> Twin | None:
        """An average of the weights, which begins as what they are now."""
        if how is None:
            return None
        return Twin(self.model, average=how, name=name).take()

    def _taught(self, transformer: Any, adapter: str) -> PeftModel:
        """A transformer with the adapter of a teacher."""
        file = self.settings.lora_file(adapter)
        return continue_lora(transformer, self._lora_of(file), name=adapter)

    def _training_mode(self) -> _Mode:
        settings, guidance = self.settings, self.settings.guidance
        guidance = self.family.guidance if guidance is None else guidance
        return self._mode(settings.steps, guidance, settings.size, key="size")

    def _evaluation_mode(self) -> _Mode:
        settings, guidance = self.settings, self.settings.eval_guidance
        guidance = self.family.eval_guidance if guidance is None else guidance
        guidance = self._training.guidance if guidance is None else guidance
        size = settings.size if settings.eval_size is None else settings.eval_size
        return self._mode(settings.eval_steps, guidance, size, key="eval_size")

    def _mode(self, steps: int, guidance: float, size: Sequence[int], *, key: str) -> _Mode:
        """The settings of training or of evaluation, with the pipeline's schedule for them."""
        multiple = self.family.multiple
        if len(size) != 2 or any(side < multiple or side % multiple for side in size):
            raise UsageError(
                f"{key} must be height and width in pixels, both positive multiples of {multiple}, such as "
                f"{[32 * multiple, 32 * multiple]}; got {size!r}."
            )
        both = (size[0], size[1])
        schedule = self.family.schedule(steps, both)
        return _Mode(steps=steps, guidance=guidance, size=both, schedule=schedule)

    def _learner(self) -> Any:
        """What trains: the transformer in full, or frozen under an adapter."""
        transformer: Any = self.family.transformer.eval()
        steady(transformer)
        if self.settings.gradient_checkpointing:
            transformer.enable_gradient_checkpointing()
        if self.settings.trains_base:
            check_trainable(type(transformer).__name__, transformer)
            return transformer.requires_grad_(True)
        transformer.requires_grad_(False)
        return adapted(transformer, self.settings, usual=self.family.lora_targets, read=self._lora_of)

    def _lora_of(self, file: Path) -> LoraFile:
        try:
            return self.family.lora_of(file)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
            raise UsageError(f"lora: adapter: '{file}' cannot be read: {one_line(error)}.") from error

    @contextmanager
    def averaged(self) -> Iterator[Any]:
        """Inside, pictures are drawn with the average of the weights, if there is one. Yields the model."""
        with self._drawing_with(self._average) as model:
            yield model

    @contextmanager
    def _drawing_with(self, average: Twin | None) -> Iterator[Any]:
        if average is None:
            yield self.model
            return
        with average.model() as model, self._swapped(model):
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
        settings = self.settings
        window = None if evaluate else settings.decision_window
        copies = None if evaluate else settings.copies
        first = width = 0
        if window is not None:
            width = window.width
            first = window.first(int(group), step=step, decisions=settings.decidable_steps)
        condition = self.family.condition(prompt, mode.size, shared)
        shares = window is not None and settings.shared_noise and settings.sampler != "ode"
        x = self._noise(group if shares else rows, 0, mode.size)
        for k in range(first):  # with shared noise one path for the group
            x = self._ode_step(x, k, condition, mode)
        x = x.expand(len(rows), *x.shape[1:])
        latents, views = [x], []
        for k in range(first, first + width):
            kernel = self._kernel_of(k)
            v = self._velocity(x, k, condition, mode)[:, None]
            fresh = self._noise(rows, 1 + k, mode.size)[:, None]
            there = flow.draw(kernel, x[:, None], v, fresh)
            views.append(self._view(kernel, x[:, None], v, there))
            x = there[:, 0]
            latents.append(x)
        for k in range(first + width, mode.steps):
            x = self._ode_step(x, k, condition, mode)
        steps = list(range(first, first + width))
        if copies is not None:
            latents = [x]
            steps = (copies.places(group)[0] * _LEVELS).long().tolist()
            seeds = self._copy_seeds(rows, group)
            views = [self._score_copies(x, seeds, t, k, condition) for t, k in enumerate(steps)]
        if views:
            old = join_decisions(views, dim=1)
        else:
            old = Decisions(logprobs=torch.zeros(len(rows), 0, device=x.device))
        pictures = self.family.pictures(x, mode.size)
        latent = torch.stack(latents, dim=1)
        return _Drawn(latents=latent, old=replace(old, target=None), steps=steps, pictures=pictures)

    def _copy_seeds(self, rows: Tensor, groups: Tensor) -> Tensor:
        """The seeds of the noise of copies [n], from those of their rows [n] and groups [n] or [1]."""
        copies = self.settings.copies
        return groups.expand(len(rows)) if copies is not None and copies.shared_noise else rows

    def _score_copies(self, x0: Tensor, seeds: Tensor, t: int, k: int, condition: Any) -> Decisions:
        """`_score` of finished samples [n, ...], a few rows at a time."""
        some = self.settings.rows or len(seeds)
        parts = zip(x0[:, None].split(some), seeds.split(some), strict=True)
        return join_decisions([self._score(latents, own, t, k, condition) for latents, own in parts], dim=0)

    def _score(self, latents: Tensor, seeds: Tensor | None, t: int, k: int, condition: Any) -> Decisions:
        """The log-probs of decision t, at place k of its schedule, of rows with their latents; a copy has seeds [b]."""
        mode, matching = self._copies, self.settings.copies
        time = mode.schedule.times[k]
        if matching is not None and seeds is not None:
            x0, level = latents[:, 0], mode.schedule.sigmas[k]
            noise = self._noise(seeds, 1 + t, mode.size)
            copies = flow.noised(x0, noise, level)
            v = self.family.velocity(copies, time, condition, guidance=mode.guidance)
            return matching.score(x0[:, None], noise[:, None], v[:, None], level)
        x, there = latents[:, t], latents[:, t + 1]
        v = self.family.velocity(x, time, condition, guidance=mode.guidance)
        return self._view(self._kernel_of(k), x[:, None], v[:, None], there[:, None])

    def _view(self, kernel: flow.Kernel, x: Tensor, v: Tensor, there: Tensor) -> Decisions:
        """The view of a step from x to `there`; the ODE's has no density."""
        if self.settings.sampler == "ode":
            return flow.predict(kernel, x, v)
        return flow.score(kernel, x, v, there)

    def _velocity(self, x: Tensor, k: int, condition: Any, mode: _Mode) -> Tensor:
        """The velocities of latents [n, ...] at step k, a few rows at a time."""
        some = x.split(self.settings.rows or len(x))
        time = mode.schedule.times[k]
        parts = [self.family.velocity(part, time, condition, guidance=mode.guidance) for part in some]
        return torch.cat(parts)

    def _ode_step(self, x: Tensor, k: int, condition: Any, mode: _Mode) -> Tensor:
        v = self._velocity(x, k, condition, mode)
        sigmas = mode.schedule.sigmas
        step = flow.ode(sigmas[k], sigmas[k + 1])
        mean, _ = step.moments(x, v)
        return mean

    def _kernel_of(self, k: int) -> flow.Kernel:
        """The kernel of one step, with scalars."""
        own = self._kernel
        return flow.Kernel(x_coef=own.x_coef[k], v_coef=own.v_coef[k], std=own.std[k])

    def _noise(self, seeds: Tensor, index: int, size: Size) -> Tensor:
        return noise(seeds, self.family.latent_shape(size), index=index, device=self.device)
