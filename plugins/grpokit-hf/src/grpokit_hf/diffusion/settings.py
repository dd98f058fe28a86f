"""The settings that policies over a diffusion transformer share, each declared once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from annotated_types import Ge, Le

from grpokit import flow
from grpokit.reference import Average
from grpokit.registry.settings import read_settings
from grpokit.settings import Count, NotNegative
from grpokit_hf.diffusion.trained_lora import find_lora, read_lora
from grpokit_hf.diffusion.windows import Window
from grpokit_hf.models.settings import ModelSettings
from grpokit_hf.models.sources import SourceSettings

Steps: TypeAlias = Annotated[int, Ge(1), Le(1000)]
"""How many steps of denoising."""


@dataclass(frozen=True, kw_only=True)
class FlowSettings(ModelSettings):
    """How pictures are drawn, what of that is decided, and what trains.

    Attributes:
        size: height and width of the pictures in pixels.
        steps: of denoising in training samples.
        guidance: of training samples, as the pipeline counts it, the same in drawing and in scoring; None: the
            family's, which leaves a second pass out where guidance needs one.
        sampler: "flow-sde", "dance-sde" or "cps". With "ode" nothing is drawn but the start: for `matching`, and for
            `objective: opd`.
        noise: the sampler's noise level (see `grpokit.flow`); None for its default.
        window: which steps are decisions, such as {"width": 2}; None: all that have noise.
        matching: decisions that are noised copies of a finished sample, such as {"times": 4, "weight": "t"} (see
            `grpokit.flow.Matching`); then samples are drawn by the ODE. None: denoising steps are the decisions.
        step_weight: how much the policy loss of each step counts: "none", "guard", "tempflow" or "flash" (see
            `grpokit.flow.step_weights`).
        shared_noise: a group's training samples begin with the same noise, and differ by the steps' noise alone; with
            `matching` or the ODE each begins with its own.
        eval_steps: of the ODE in evaluation.
        eval_guidance: in evaluation; None: the pipeline's own default.
        eval_size: of the pictures in evaluation; None for `size`.
        lora: settings of an adapter, such as {"r": 32, "alpha": 64}, or {"adapter": ...} to continue one from a
            .safetensors file, a folder or the hub; None trains the transformer's own weights.
        ema: an average of the trained weights, such as {"decay": 0.9, "every": 8}, which evaluations draw with.
        old_ema: an average of the trained weights, such as {"decay": 0.5, "ramp": 0.001}, which draws training samples
            and is the objective's old policy, as in DiffusionNFT; there it moves once a rollout, so set `every` to the
            updates of a step. None: the weights of the moment.
        reference_guidance: of the reference, or of teachers; None: as of training samples.
        rows: the most pictures in one pass of the transformer while drawing; None for a whole group.
        compiled: compile the transformer's blocks with `torch.compile`, which takes a minute or two at the first pass.
    """

    size: Sequence[int]
    steps: Steps = 10
    guidance: NotNegative | None = None
    sampler: flow.Sampler = "flow-sde"
    noise: float | None = None
    window: Mapping[str, Any] | None = None
    matching: Mapping[str, Any] | None = None
    step_weight: flow.StepWeight = "none"
    shared_noise: bool = True
    eval_steps: Steps = 40
    eval_guidance: NotNegative | None = None
    eval_size: Sequence[int] | None = None
    ema: Mapping[str, Any] | None = None
    old_ema: Mapping[str, Any] | None = None
    reference_guidance: NotNegative | None = None
    rows: Count | None = None
    compiled: bool = False

    def check_together(self) -> None:
        """Refuse what `ema`, `matching` or `window` does not have, and a sampler without noise to decide.

        Raises:
            UsageError: with what to change.
        """
        _ = self.average, self.old_average, self.copies, self.decision_window

    @cached_property
    def average(self) -> Average | None:
        """How an average follows the weights; None without."""
        if self.ema is None:
            return None
        return read_settings(Average, self.ema, key="ema", example="{decay: 0.9, every: 8}")

    @cached_property
    def old_average(self) -> Average | None:
        """How the average that draws training samples follows the weights; None without."""
        if self.old_ema is None:
            return None
        return read_settings(Average, self.old_ema, key="old_ema", example="{decay: 0.5, ramp: 0.001}")

    @cached_property
    def copies(self) -> flow.Matching | None:
        """What is decided in place of steps; None where steps are."""
        if self.matching is None:
            return None
        copies = read_settings(flow.Matching, self.matching, key="matching", example="{times: 4, weight: t}")
        copies.check(sampler=self.sampler, noise=self.noise, step_weight=self.step_weight, window=self.window)
        return copies

    @cached_property
    def decidable_steps(self) -> int:
        """How many steps of training samples can be decisions."""
        return flow.decided_steps(self.sampler, self.steps, noise=self.noise)

    @cached_property
    def decision_window(self) -> Window | None:
        """The steps that are decisions; None with `matching`."""
        if self.matching is not None:
            return None
        if self.window is None:
            return Window(width=self.decidable_steps, share=1.0)
        window = read_settings(Window, self.window, key="window", example="{width: 2}")
        window.check(self.decidable_steps)
        return window

    @property
    def decisions(self) -> int:
        """Of a training sample: T."""
        return self.copies.times if self.decision_window is None else self.decision_window.width  # type: ignore[union-attr]

    @property
    def shared_steps(self) -> float:
        """How many steps a group takes together, on average: those before the window, if it shares its noise."""
        window = self.decision_window
        if window is None or not self.shared_noise or self.sampler == "ode":
            return 0.0
        if window.start == "random":
            return max(0, int(window.share * self.decidable_steps) - window.width) / 2
        return (self.decidable_steps - window.width) / 2

    @cached_property
    def trained_lora(self) -> Path | None:
        """The file of the LoRA that `lora` names, to train it on; None where it names none.

        Raises:
            UsageError: there is no such file, or more than one that it may be.
        """
        adapter = self.adapter
        if adapter is None or adapter.adapter is None:
            return None
        return self.lora_file(adapter.adapter, revision=adapter.revision)

    def lora_file(self, adapter: str | Path, *, revision: str | None = None) -> Path:
        """The file of a trained LoRA: itself, in a folder, or on the hub.

        Raises:
            UsageError: there is no such file, or more than one that it may be.
        """
        return find_lora(adapter, SourceSettings(revision=revision, local_files_only=self.local_files_only))

    def _find_teacher(self, adapter: str | Path) -> None:
        self.lora_file(adapter)

    def adapter_size(self, adapter: str | Path) -> int:
        """How many weights a trained LoRA has."""
        return sum(tensor.numel() for tensor in read_lora(self.lora_file(adapter)).tensors.values())
