"""Phases of a run: one policy of a model learns for some steps while the others are frozen."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from grpokit.config.parts import RewardConfig, Strict, Text, TrainerConfig, described_by, trained_on
from grpokit.errors import UsageError, shown
from grpokit.files import PLAIN_NAME, is_plain_name
from grpokit.knobs import ClipSettings, ObjectiveSettings, Total, TrainerSettings

_OF_THE_RUN = ("device", "mixed_precision")


def _keys_of_a_phase(schema: dict[str, Any]) -> None:
    """For editors: no keys that a phase cannot have, and no defaults, since what it leaves out is the run's."""
    described_by(TrainerSettings, ObjectiveSettings, ClipSettings)(schema)
    for name in ("steps", *_OF_THE_RUN):
        del schema["properties"][name]
    for key in schema["properties"].values():
        key.pop("default", None)


class PhaseTrainerConfig(TrainerConfig):
    """Keys that replace those of `trainer` during a phase."""

    model_config = ConfigDict(json_schema_extra=_keys_of_a_phase)

    @model_validator(mode="after")
    def _numbers_that_fit_together(self) -> PhaseTrainerConfig:  # only together with those of `trainer`
        if "steps" in self.model_fields_set:
            raise ValueError("steps goes next to the phase's name, as in {name: first, steps: 50}")
        for name in _OF_THE_RUN:
            if name in self.model_fields_set:
                raise ValueError(f"{name} is the same for the whole run: set it in trainer")
        return self


class PhaseConfig(Strict):
    """A phase."""

    name: Text = Field(description="letters, digits, - and _")
    policy: Text | None = Field(default=None, description="the policy that learns, if `policy` gives several")
    steps: Total = Field(description="its steps in each round")
    rewards: list[RewardConfig] | None = Field(
        default=None, min_length=1, description="what it learns from; by default the run's rewards"
    )
    trainer: PhaseTrainerConfig = Field(
        default_factory=PhaseTrainerConfig, description="keys that replace those of `trainer`"
    )

    @field_validator("name")
    @classmethod
    def _a_name_that_a_folder_can_have(cls, name: str) -> str:
        if not is_plain_name(name):
            raise ValueError(f"expected {PLAIN_NAME}, got {shown(name)}")
        return name

    @field_validator("rewards")
    @classmethod
    def _something_to_train_on(cls, rewards: list[RewardConfig] | None) -> list[RewardConfig] | None:
        return None if rewards is None else trained_on(rewards)

    def merged(self, trainer: TrainerConfig, steps: int) -> TrainerConfig:
        """The keys of a run's trainer with those of the phase in their place.

        Args:
            trainer: of the run.
            steps: of the phase in all rounds.

        Raises:
            UsageError: numbers that do not fit together.
        """
        keys = {**_set(trainer), **_set(self.trainer), "steps": steps}
        try:
            return TrainerConfig.model_validate(keys)
        except ValidationError as error:
            raise UsageError(f"{error.errors()[0]['ctx']['error']}.", page="configs#phases") from error


def _set(model: BaseModel) -> dict[str, object]:
    return {name: getattr(model, name) for name in model.model_fields_set}
