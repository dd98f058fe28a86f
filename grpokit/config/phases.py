"""Phases of a run: one policy of a model learns for some steps while the others are frozen."""

from __future__ import annotations

from pydantic import Field, model_validator

from grpokit.config.parts import Rewards, Strict, Text, TrainerConfig
from grpokit.knobs import Total


class PhaseTrainerConfig(TrainerConfig):
    """Keys that replace those of `trainer` during a phase."""

    @model_validator(mode="after")
    def _numbers_that_fit_together(self) -> PhaseTrainerConfig:  # only together with those of `trainer`
        if "steps" in self.model_fields_set:
            raise ValueError("steps goes next to the phase's name, as in {name: first, steps: 50}")
        for name in ("device", "mixed_precision"):
            if name in self.model_fields_set:
                raise ValueError(f"{name} is the same for the whole run: set it in trainer")
        return self


class PhaseConfig(Strict):
    """A phase."""

    name: str = Field(description="letters, digits, - and _", pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$")
    policy: Text | None = Field(default=None, description="the policy that learns, if `policy` gives several")
    steps: Total = Field(description="its steps in each round")
    rewards: Rewards | None = Field(default=None, description="what it learns from; by default the run's rewards")
    trainer: PhaseTrainerConfig = Field(
        default_factory=PhaseTrainerConfig, description="keys that replace those of `trainer`"
    )
