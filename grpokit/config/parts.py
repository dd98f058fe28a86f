"""The parts of a config: their keys with types, defaults and bounds."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Annotated, Any, Self, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    create_model,
    field_validator,
    model_validator,
)

from grpokit import registry
from grpokit.errors import UsageError, nearest
from grpokit.settings import (
    ClipSettings,
    Correction,
    Count,
    ObjectiveSettings,
    RewardSettings,
    Total,
    TrainerSettings,
    Whole,
    meanings,
)

Text = Annotated[str, Field(min_length=1, max_length=1000)]
PathText = Annotated[Text, AfterValidator(os.path.expanduser)]


def _describe(schema: dict[str, Any], model: type) -> None:
    """Gives keys that a group inherits from a dataclass of settings the meanings that are declared there."""
    described = meanings(model) if dataclasses.is_dataclass(model) else {}
    for name in schema["properties"].keys() & described.keys():
        schema["properties"][name].setdefault("description", described[name])


class Base(BaseModel):
    """A group of keys; their values are not converted."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, json_schema_extra=_describe)

    @field_validator("*", mode="wrap")
    @classmethod
    def _whole_number(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        """`1e3` and `2.0` are whole numbers too."""
        try:
            return validate(value)
        except ValidationError:
            if isinstance(value, float) and value.is_integer():
                return validate(int(value))
            raise


class Strict(Base):
    """A group of known keys."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="after")
    def _numbers_that_fit_together(self) -> Self:
        """The check of the settings that a group inherits, whose error pydantic lists with the place."""
        try:
            if hasattr(self, "check_together"):
                self.check_together()
        except UsageError as error:
            raise ValueError(str(error).rstrip(".")) from error
        return self


class Component(Base):
    """`use: name` and the component's own flat parameters next to it."""

    model_config = ConfigDict(extra="allow")

    use: Text = Field(description="a component's name, `distribution:name`, or `package.module:function`")

    @property
    def params(self) -> dict[str, Any]:
        """Everything that goes to the factory."""
        return dict(self.model_extra or {})


class RewardConfig(Component, RewardSettings):  # type: ignore[misc]  # no dataclass itself, so frozen or not
    """A reward in the mix; all other keys go to its factory."""

    name: Text | None = Field(default=None, description="its name in metrics; by default what `use` says")
    workers: int = Field(default=0, ge=0, le=256, description="processes that it runs in; 0: the run's own")
    reward_timeout: float | None = Field(
        default=None, gt=0, le=86_400, description="with workers or placement: the most seconds that a call may take"
    )
    placement: dict[Text, Any] | None = Field(
        default=None,
        description="where it runs instead, such as {http: 'http://gpu-2:8009'} or {capsule: [hpsv2]}",
    )

    @model_validator(mode="after")
    def _keys_that_go_together(self) -> RewardConfig:
        if self.every > 1 and self.weight != 0:
            raise ValueError(
                f"every: {self.every} needs weight: 0 (a monitor); a reward that is trained on is called in every step"
            )
        if self.placement is not None and len(self.placement) != 1:
            places = " and ".join(self.placement) or "none"
            raise ValueError(f"placement names one place, as in {{http: 'http://gpu-2:8009'}}; got {places}")
        if self.placement is not None and self.workers:
            raise ValueError("workers are processes of this machine, and placement names another place; leave one out")
        if self.reward_timeout is not None and not self.workers and self.placement is None:
            usual_place, _ = registry.placement_of(self.use, {})
            if not usual_place:
                raise ValueError(
                    "reward_timeout needs a process that can be ended: set workers to 1 or more, or name its placement"
                )
        return self


class PromptSource(Strict):
    """Where prompts are: a file with the pictures that go with it, or a split of the dataset."""

    prompts: PathText | None = Field(
        default=None, description="lines of text, JSON, CSV, Parquet, pictures with metadata, or shards"
    )
    targets: PathText | None = Field(default=None, description="folder of target pictures named by line number from 1")
    images: PathText | None = Field(default=None, description="folder of source pictures named by line number from 1")
    split: Text | None = Field(default=None, description="the dataset's split")

    @model_validator(mode="after")
    def _keys_that_go_together(self) -> PromptSource:
        for key, other in (("targets", "prompts"), ("images", "prompts"), ("subset", "dataset")):
            if getattr(self, key, None) and getattr(self, other) is None:  # without this check it would be ignored
                raise ValueError(f"'{key}' goes with '{other}', which is not set")
        return self


class DataConfig(PromptSource):
    """Where prompts come from: exactly one of `prompts`, `dataset` and `use`."""

    model_config = ConfigDict(extra="allow")  # a dataset's own keys beside `use`, which is checked below

    dataset: PathText | None = Field(default=None, description="Hugging Face dataset: hub id or folder")
    subset: Text | None = Field(default=None, description="the dataset's subset, if it has several")
    split: Text = Field(default="train", description="the dataset's split")
    columns: dict[str, str | None] = Field(default_factory=dict, description="columns for prompt, target, image")
    use: Text | None = Field(
        default=None, description="a dataset's name, or `package.module:function` called with split='train' or 'eval'"
    )
    max_pixels: Total | None = Field(
        default=None, ge=1, description="a picture with more pixels is refused; null: grpokit's limit, 36 million"
    )

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        sources = [name for name in ("prompts", "dataset", "use") if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ValueError(
                f"give exactly one of prompts, dataset and use; got {' and '.join(sources) or 'none'}. An override of "
                "one key keeps the others; 'data={prompts: FILE}' replaces them all"
            )
        if self.use is not None and (self.max_pixels or self.columns):
            raise ValueError("max_pixels and columns do not go with use: a function gives prompts with their pictures")
        unknown = next(iter(self.model_extra or {}), None)
        if unknown and self.use is None:
            raise ValueError(f"unknown key '{unknown}'{nearest(unknown, type(self).model_fields)}")
        return self


class EvalConfig(PromptSource):
    """The held-out prompts, and how often they are scored."""

    fraction: float | None = Field(default=None, gt=0, lt=1, description="share of the prompts of `data` to hold out")
    every: Whole = Field(default=0, description="evaluate every n steps; 0: only before and after")
    samples: Count = Field(default=1, description="samples per held-out prompt")
    batch_size: Count | None = Field(
        default=None, description="the most held-out samples drawn at a time; null: as many as fit into a rollout"
    )

    @model_validator(mode="after")
    def _one_source(self) -> EvalConfig:
        sources = [name for name in ("prompts", "split", "fraction") if getattr(self, name) is not None]
        if len(sources) > 1:
            raise ValueError(
                f"give one kind of held-out prompts; got {' and '.join(sources)} (set a key to null to remove it)"
            )
        return self


OBJECTIVE_KEYS: dict[str, Any] = {
    name: (hint | None, Field(default=None, description=meanings(kind)[name]))  # not given: the objective's own default
    for kind in (ObjectiveSettings, ClipSettings)
    for name, hint in get_type_hints(kind, include_extras=True).items()
}
if TYPE_CHECKING:
    _FlatObjective = Strict
else:
    _FlatObjective = create_model("_FlatObjective", __base__=Strict, **OBJECTIVE_KEYS)


class CorrectionConfig(Strict, Correction):  # type: ignore[misc]  # no dataclass itself, so frozen or not
    """Importance weights where a rollout's log-probs are not those of training."""


class TrainerConfig(_FlatObjective, TrainerSettings):
    """The settings of `grpokit.Trainer`, and those of the advantage and the objective."""

    advantage: Text | Component = Field(
        default="group", description="how the rewards of a group become advantages; parameters go next to `use`"
    )
    objective: Text | Component = Field(
        default="grpo", description="how advantages and log-probs become a loss; parameters go next to `use`"
    )
    modifiers: list[Text | Component] = Field(
        default_factory=list, description="what changes a step, in this order; parameters go beside `use`"
    )
    correction: CorrectionConfig | None = None

    @property
    def flat_objective(self) -> dict[str, Any]:
        """The objective's settings among the trainer's."""
        return {name: getattr(self, name) for name in OBJECTIVE_KEYS if name in self.model_fields_set}


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
    rewards: list[RewardConfig] | None = Field(
        default=None, description="what it learns from; by default the run's rewards"
    )
    trainer: PhaseTrainerConfig = Field(
        default_factory=PhaseTrainerConfig, description="keys that replace those of `trainer`"
    )
