"""What the parameters of a flow policy mean, and which are refused before a model is there."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpokit import flow
from grpokit.errors import UsageError
from grpokit_hf.diffusion.windows import Window
from grpokit_hf.models.adapters import AdapterSettings
from grpokit_hf.models.references import Average
from grpokit_hf.models.settings import read_settings


@dataclass(frozen=True, kw_only=True)
class FlowSettings:
    """What can be known of a policy's parameters without a model.

    Attributes:
        able: how many steps of training samples can be decisions.
        window: those that are.
        adapter: what is put around the weights; None where they train themselves.
        average: how an average follows them; None without.
    """

    able: int
    window: Window
    adapter: AdapterSettings | None
    average: Average | None

    @property
    def before(self) -> float:
        """How many steps come before the window, on average."""
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
        lora: Mapping[str, Any] | None,
        ema: Mapping[str, Any] | None,
        guidance: float | None = None,
        eval_guidance: float | None = None,
        rows: int | None = None,
    ) -> FlowSettings:
        """The settings of parameters, which are those of `FlowPolicy`.

        Raises:
            UsageError: one of them cannot be used.
        """
        if sampler == "ode" or noise == 0:
            raise UsageError(
                "Training needs a sampler with noise ('flow-sde', 'dance-sde' or 'cps', with a noise above 0); "
                f"got sampler={sampler!r}, noise={noise}. Evaluation follows the ODE anyway."
            )
        for name, count in (("steps", steps), ("eval_steps", eval_steps)):
            if type(count) is not int or not 1 <= count <= 1000:
                raise UsageError(f"{name} must be a whole number from 1 to 1000, got {count!r}.")
        for name, strength in (("guidance", guidance), ("eval_guidance", eval_guidance)):
            if strength is not None and not 0 <= strength < math.inf:
                raise UsageError(f"{name} must be a number of at least 0, got {strength}.")
        if rows is not None and (type(rows) is not int or rows < 1):
            raise UsageError(f"rows must be a whole number of at least 1, or null for a whole group; got {rows!r}.")
        sigmas = flow.linear_sigmas(steps)
        able = int((flow.kernel(sampler, sigmas[:-1], sigmas[1:], noise=noise).std > 0).sum())
        if able == 0:
            raise UsageError(f"{sampler!r} with steps={steps} has no step with noise, so nothing to train: use more.")
        if window is None:
            own = Window(width=able, share=1.0)
        else:
            own = read_settings(Window, window, key="window", example="{width: 2}")
            own.check(able)
        adapter = None if lora is None else AdapterSettings.read(lora)
        average = None if ema is None else read_settings(Average, ema, key="ema", example="{decay: 0.9, every: 8}")
        return cls(able=able, window=own, adapter=adapter, average=average)
