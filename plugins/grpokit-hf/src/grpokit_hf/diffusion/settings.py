"""What the parameters of a flow policy mean, and which are refused before a model is there."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpokit import flow
from grpokit.errors import UsageError
from grpokit.registry.settings import read_settings
from grpokit_hf.diffusion.windows import Window
from grpokit_hf.models.adapters import AdapterSettings
from grpokit_hf.models.references import Average


@dataclass(frozen=True, kw_only=True)
class FlowSettings:
    """What can be known of a policy's parameters without a model.

    Attributes:
        able: how many steps of training samples can be decisions.
        window: those that are; None with `matching`.
        matching: what is decided in place of steps; None where steps are.
        adapter: what is put around the weights; None where they train themselves.
        average: how an average follows them; None without.
        reference: how the reference follows them; None: it stays.
    """

    able: int
    window: Window | None
    matching: flow.Matching | None
    adapter: AdapterSettings | None
    average: Average | None
    reference: Average | None

    @property
    def decisions(self) -> int:
        """Of a training sample: T."""
        return self.matching.times if self.window is None else self.window.width  # type: ignore[union-attr]

    @property
    def before(self) -> float:
        """How many steps a group takes together, on average: those before the window."""
        if self.window is None:
            return 0.0
        if self.window.start == "random":
            return max(0, int(self.window.share * self.able) - self.window.width) / 2
        return (self.able - self.window.width) / 2

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> FlowSettings:
        """The settings of all parameters of a policy, as `read`."""
        return cls.read(**{name: parameters[name] for name in inspect.signature(cls.read).parameters})

    @classmethod
    def read(
        cls,
        *,
        steps: int,
        eval_steps: int,
        sampler: flow.Sampler,
        noise: float | None,
        window: Mapping[str, Any] | None,
        matching: Mapping[str, Any] | None,
        step_weight: flow.StepWeight,
        lora: Mapping[str, Any] | None,
        ema: Mapping[str, Any] | None,
        reference_ema: Mapping[str, Any] | None = None,
        guidance: float | None = None,
        eval_guidance: float | None = None,
        rows: int | None = None,
    ) -> FlowSettings:
        """The settings of parameters, which are those of `FlowPolicy`.

        Raises:
            UsageError: one of them cannot be used.
        """
        for name, count in (("steps", steps), ("eval_steps", eval_steps)):
            if type(count) is not int or not 1 <= count <= 1000:
                raise UsageError(f"{name} must be a whole number from 1 to 1000, got {count!r}.")
        for name, strength in (("guidance", guidance), ("eval_guidance", eval_guidance)):
            if strength is not None and not 0 <= strength < math.inf:
                raise UsageError(f"{name} must be a number of at least 0, got {strength}.")
        if rows is not None and (type(rows) is not int or rows < 1):
            raise UsageError(f"rows must be a whole number of at least 1, or null for a whole group; got {rows!r}.")
        able, own, copies = 0, None, None
        if matching is not None:
            copies = read_settings(flow.Matching, matching, key="matching", example="{times: 4, weight: t}")
            copies.check(sampler=sampler, noise=noise, step_weight=step_weight, window=window)
        else:
            able = flow.noisy_steps(sampler, steps, noise=noise)
            own = Window(width=able, share=1.0)
        if window is not None:
            own = read_settings(Window, window, key="window", example="{width: 2}")
            own.check(able)
        adapter = None if lora is None else AdapterSettings.read(lora)
        average = None if ema is None else read_settings(Average, ema, key="ema", example="{decay: 0.9, every: 8}")
        reference = None if reference_ema is None else Average.read(reference_ema)
        return cls(able=able, window=own, matching=copies, adapter=adapter, average=average, reference=reference)
