"""A run's config: its keys with their types, defaults and bounds, and how it is read from YAML with overrides.

The config names what to build, with flat parameters. `grpokit.runs.build` builds it, and asks the config for the place
of a key that turns out wrong. A value of the wrong type is refused, never converted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from grpokit import files
from grpokit.config.mistakes import TWO_SOURCES, explain
from grpokit.config.overrides import apply
from grpokit.config.yaml_source import Source, read
from grpokit.errors import ConfigError, UsageError, nearest, shown
from grpokit.knobs import (
    ClipSettings,
    Correction,
    Count,
    ObjectiveSettings,
    RewardSettings,
    SeedSettings,
    Total,
    TrainerSettings,
    Whole,
    check_bounds,
    meanings,
)

_Text = Annotated[str, Field(min_length=1, max_length=1000)]
_Tracker = Literal[  # accelerate's, which is too heavy to be asked
    "aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb"
]


class _Base(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, data: Any) -> Any:
        """`1e3` and `2.0` are whole numbers too."""
        if not isinstance(data, dict):
            return data
        whole = {name for name, field in cls.model_fields.items() if _takes_whole_numbers(field.annotation)}
        return {
            key: int(value) if key in whole and isinstance(value, float) and value.is_integer() else value
            for key, value in data.items()
        }


def _takes_whole_numbers(annotation: Any) -> bool:
    return annotation is int or any(_takes_whole_numbers(part) for part in get_args(annotation))


class _Strict(_Base):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _described_by(*settings: type) -> Callable[[dict[str, Any]], None]:
    """Gives the keys of a schema the meanings that these dataclasses declare."""

    def describe(schema: dict[str, Any]) -> None:
        for name, text in (item for kind in settings for item in meanings(kind).items()):
            schema["properties"].get(name, {}).setdefault("description", text)

    return describe


class Component(_Base):
    """`use: name` and the component's own flat parameters beside it."""

    model_config = ConfigDict(extra="allow", strict=True)

    use: _Text = Field(description="a plugin's name for it, `plugin:name`, or `package.module:function`")

    @property
    def params(self) -> dict[str, Any]:
        """Everything that goes to the factory."""
        return dict(self.model_extra or {})


class RewardConfig(Component, RewardSettings):  # type: ignore[misc]  # no dataclass itself, so frozen or not
    """A reward in the mix; keys beside these go to its factory."""

    model_config = ConfigDict(
        extra="allow", strict=True, allow_inf_nan=False, json_schema_extra=_described_by(RewardSettings)
    )

    name: _Text | None = Field(default=None, description="its name in metrics; by default what `use` says")
    workers: int = Field(default=0, ge=0, le=256, description="processes that it runs in; 0: the run's own")
    reward_timeout: float | None = Field(
        default=None, gt=0, le=86_400, description="with workers, seconds that a call may take"
    )

    @model_validator(mode="after")
    def _keys_that_go_together(self) -> RewardConfig:
        if self.every > 1 and self.weight != 0:
            raise ValueError(
                f"every: {self.every} goes with weight: 0 (a monitor); a reward that is trained on is needed in each "
                "step"
            )
        if self.reward_timeout is not None and not self.workers:
            raise ValueError("reward_timeout needs a process that can be ended: set workers to 1 or more")
        return self


_COMPANIONS = {
    "prompts": ["targets", "images"],
    "dataset": ["subset", "columns", "eval_split"],
    "eval_prompts": ["eval_targets", "eval_images"],
}


class DataConfig(_Strict):
    """Where prompts come from: exactly one of `prompts`, `jsonl`, `dataset` and `use`."""

    # a source's own keys are allowed beside `use` only, which is checked below
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    prompts: _Text | None = Field(default=None, description="text file, one prompt per line")
    targets: _Text | None = Field(default=None, description="folder of target pictures named by line number from 1")
    images: _Text | None = Field(default=None, description="folder of source pictures, likewise")
    jsonl: _Text | None = Field(default=None, description="JSON lines with prompt, target, image or images")
    dataset: _Text | None = Field(default=None, description="Hugging Face dataset: hub id or folder")
    subset: _Text | None = Field(default=None, description="the dataset's subset, where it has several")
    split: _Text = Field(default="train", description="the dataset's split")
    columns: dict[str, str] = Field(default_factory=dict, description="its columns for prompt, target, image")
    use: _Text | None = Field(default=None, description="`package.module:function` called with split='train' or 'eval'")
    eval_prompts: _Text | None = Field(default=None, description="held-out prompts, as `prompts`")
    eval_targets: _Text | None = Field(default=None, description="their target pictures")
    eval_images: _Text | None = Field(default=None, description="their source pictures")
    eval_jsonl: _Text | None = Field(default=None, description="held-out prompts, as `jsonl`")
    eval_split: _Text | None = Field(default=None, description="the dataset's split of held-out prompts")
    eval_fraction: float | None = Field(default=None, gt=0, lt=1, description="share of the prompts to hold out")
    max_pixels: Total | None = Field(
        default=None, ge=1, description="a picture with more pixels is refused; null: grpokit's limit, 36 million"
    )

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        sources = [name for name in ("prompts", "jsonl", "dataset", "use") if getattr(self, name) is not None]
        if len(sources) != 1:
            raise PydanticCustomError(
                TWO_SOURCES,
                "give exactly one of prompts, jsonl, dataset and use; got {sources}",
                {"sources": " and ".join(sources) or "none"},
            )
        if self.use is not None and self.max_pixels is not None:
            raise ValueError("'max_pixels' does not go with 'use': a function opens its own pictures")
        unknown = next(iter(self.model_extra or {}), None)
        if unknown and self.use is None:
            raise ValueError(f"unknown key '{unknown}'{nearest(unknown, type(self).model_fields)}")
        kinds = [
            n for n in ("eval_prompts", "eval_jsonl", "eval_split", "eval_fraction") if getattr(self, n) is not None
        ]
        if len(kinds) > 1:
            raise ValueError(
                f"give one kind of held-out prompts; got {' and '.join(kinds)} (set a key to null to remove it)"
            )
        for owner, companions in _COMPANIONS.items():
            alone = [n for n in companions if getattr(self, owner) is None and getattr(self, n)]
            if alone:  # without this check it would be ignored
                raise ValueError(f"'{alone[0]}' goes with '{owner}', which is not set")
        return self


OBJECTIVE_KEYS: dict[str, Any] = {
    name: hint
    for kind in (ObjectiveSettings, ClipSettings)
    for name, hint in get_type_hints(kind, include_extras=True).items()
}
if TYPE_CHECKING:
    _FlatObjective = _Strict
else:
    _FlatObjective = create_model(  # a key that is not given leaves the objective's own default
        "_FlatObjective", __base__=_Strict, **{name: (hint | None, None) for name, hint in OBJECTIVE_KEYS.items()}
    )


class CorrectionConfig(_Strict, Correction):  # type: ignore[misc]  # no dataclass itself, so frozen or not
    """Importance weights where a rollout's log-probs are not those of training."""

    model_config = ConfigDict(json_schema_extra=_described_by(Correction))

    @model_validator(mode="after")
    def _bounds_around_one(self) -> CorrectionConfig:
        try:
            check_bounds(self)
        except UsageError as error:
            raise ValueError(str(error).rstrip(".")) from error
        return self


class TrainerConfig(_FlatObjective, TrainerSettings):
    """The knobs of `grpokit.Trainer`, and those of the advantage and the objective."""

    model_config = ConfigDict(json_schema_extra=_described_by(TrainerSettings, ObjectiveSettings, ClipSettings))

    advantage: _Text | Component = "group"
    objective: _Text | Component = "grpo"
    correction: CorrectionConfig | None = None

    @property
    def flat_objective(self) -> dict[str, Any]:
        """The objective's knobs among the trainer's."""
        return {name: getattr(self, name) for name in OBJECTIVE_KEYS if name in self.model_fields_set}

    @field_validator("device", mode="before")
    @classmethod
    def _the_name_of_a_gpu(cls, device: Any) -> Any:
        if device == "gpu":
            raise ValueError("a GPU is called 'cuda' here")
        return device

    @model_validator(mode="after")
    def _numbers_that_fit_together(self) -> TrainerConfig:
        try:
            self.check_shares()
        except UsageError as error:
            raise ValueError(str(error).rstrip(".")) from error
        return self


class RunSettings(_Strict):
    """What a run leaves behind."""

    dir: _Text | None = Field(default=None, description="the run folder; by default runs/<config's name>")
    save_every: Whole = Field(default=0, description="checkpoint every n steps; 0: only at the end")
    keep_last: Total | None = Field(default=3, description="how many step checkpoints to keep; null: all")
    best: _Text | None = Field(
        default=None, description="a held-out score; the checkpoint with its best value is kept as well"
    )
    record: bool = Field(default=False, description="keep every rollout in rollouts/, for rescore and redraw")
    eval_every: Whole = Field(default=0, description="evaluate every n steps; 0: only before and after")
    eval_samples: Count = Field(default=1, description="samples per held-out prompt")
    eval_batch_size: Count | None = Field(
        default=None, description="the most held-out samples drawn at a time; null: as many as a rollout has room for"
    )
    trackers: list[_Tracker] = Field(
        default_factory=list, description="where metrics go as well: tensorboard, wandb, mlflow and others"
    )
    threads: int | None = Field(default=None, ge=1, le=1024, description="torch's CPU threads")

    @model_validator(mode="after")
    def _a_folder_of_its_own(self) -> RunSettings:
        name = None if self.dir is None else Path(self.dir).name
        if name in ("", ".."):
            raise ValueError(f"dir must name a folder of the run's own, got {self.dir!r}")
        if name is not None and ("\0" in str(self.dir) or len(name.encode(errors="replace")) > 200):
            raise ValueError(f"dir must be a name that a folder can have, of at most 200 bytes, got {shown(self.dir)}")
        return self


class RunConfig(_Strict, SeedSettings):
    """A whole run."""

    model_config = ConfigDict(json_schema_extra=_described_by(SeedSettings))

    policy: Component
    data: DataConfig
    rewards: list[RewardConfig] = Field(min_length=1)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    run: RunSettings = Field(default_factory=RunSettings)

    @field_validator("rewards")
    @classmethod
    def _something_to_train_on(cls, rewards: list[RewardConfig]) -> list[RewardConfig]:
        if not any(reward.weight for reward in rewards):
            raise ValueError(
                "every reward has weight 0, so all are monitors and none is trained on; give at least one of them "
                "another weight"
            )
        return rewards

    _source: Source | None = PrivateAttr(default=None)

    def place(self, *path: str | int) -> str:
        """The place of a key, to begin a message with; empty for a config that was not read from text.

        >>> parse("policy: {use: p}\\ndata: {use: d}\\nrewards: [{use: r}]", "run.yaml").place("rewards", 0)
        'run.yaml, line 3: rewards.0: '
        """
        return f"{self._source.place(path)}: {'.'.join(map(str, path))}: " if self._source else ""


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a config file and apply `key=value` overrides such as `trainer.steps=50` or `rewards.0.weight=1`.

    Raises:
        ConfigError: the file is missing or not YAML, or the config is wrong. The message names the file and, where
            there is one, the line.
    """
    return parse(files.read_text(path, kind="config file", error=ConfigError), str(path), overrides)


def parse(
    text: str, name: str, overrides: Sequence[str] = (), *, prepare: Callable[[dict[str, Any]], None] | None = None
) -> RunConfig:
    """As `load`, from YAML text.

    Args:
        text: the config.
        name: names the text in messages, such as its file.
        overrides: `key=value` texts.
        prepare: may change the plain data in place, before the overrides are applied.

    Raises:
        ConfigError: as in `load`.
    """
    data, source = read(text, name)
    if not isinstance(data, dict):
        content = "an empty file" if data is None else shown(data)
        raise ConfigError(f"{name}: expected keys such as policy, data and rewards, got {content}.")
    if prepare is not None:
        prepare(data)
    for override in overrides:
        apply(data, override, source)
    try:
        config = RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, source, RunConfig)) from error
    config._source = source
    return config


def resolved(config: BaseModel) -> dict[str, Any]:
    """The config as plain data, defaults included; `parse` reads it back to the same config.

    A null that the config sets is kept, since it may mean something else than the default.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in value]
        return resolved(value) if isinstance(value, BaseModel) else value

    return {name: plain(value) for name, value in config if value is not None or name in config.model_fields_set}


def differences(before: Any, after: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two resolved configs differ: (dotted key, before, after), None for a key that is missing.

    >>> list(differences({"a": {"b": 1}, "c": [1]}, {"a": {"b": 2}, "c": [1, 3]}))
    [('a.b', 1, 2), ('c.1', None, 3)]
    """
    if isinstance(before, list) and isinstance(after, list):
        before, after = (dict(enumerate(x)) for x in (before, after))
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            yield from differences(before.get(name), after.get(name), f"{key}.{name}" if key else str(name))
    elif before != after:
        yield key, before, after


def schema() -> str:
    """The JSON schema of a config, for editors."""
    return json.dumps(RunConfig.model_json_schema(), indent=2)
