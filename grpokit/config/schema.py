"""A run's config: its keys with their types, defaults and bounds, and how it is read from YAML with overrides.

The config names what to build, with flat parameters. `grpokit.runs.build` builds it, and asks the config for the place
of a key that turns out wrong. A value of the wrong type is refused, never converted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from grpokit.config.mistakes import TWO_SOURCES, explain
from grpokit.config.overrides import apply
from grpokit.config.yaml_source import Source, read
from grpokit.errors import ConfigError, nearest, one_line, shown


def _whole(value: Any) -> Any:
    """`1e3` and `2.0` are whole numbers too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _device(value: Any) -> Any:
    if value == "gpu":
        raise ValueError("a GPU is called 'cuda' here")
    return value


_Size = Annotated[int, BeforeValidator(_whole), Field(le=1_000_000)]
_Total = Annotated[int, BeforeValidator(_whole), Field(le=1_000_000_000)]
_Text = Annotated[str, Field(min_length=1, max_length=1000)]
_Tracker = Literal[  # accelerate's, which is too heavy to be asked
    "aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb"
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Component(BaseModel):
    """`use: name` and the component's own flat parameters beside it."""

    model_config = ConfigDict(extra="allow", strict=True)

    use: _Text = Field(description="a plugin's name for it, `plugin:name`, or `package.module:function`")

    @property
    def params(self) -> dict[str, Any]:
        """Everything that goes to the factory."""
        return dict(self.model_extra or {})


class RewardConfig(Component):
    """A reward in the mix; keys beside these go to its factory."""

    weight: float = Field(
        default=1.0, allow_inf_nan=False, description="factor in the weighted sum; 0: a monitor, measured only"
    )
    every: _Total = Field(default=1, ge=1, description="a monitor is measured in the first of so many steps")
    name: _Text | None = Field(default=None, description="its name in metrics; by default what `use` says")
    on_error: Literal["stop", "skip"] = Field(default="stop", description="what an exception does")
    skip_limit: float = Field(
        default=0.5, ge=0, le=1, description="with on_error: skip, the largest share of rows that may be lost to it"
    )
    workers: Annotated[int, BeforeValidator(_whole)] = Field(
        default=0, ge=0, le=256, description="processes that it runs in; 0: the run's own"
    )
    reward_timeout: float | None = Field(
        default=None, gt=0, le=86_400, allow_inf_nan=False, description="with workers, seconds that a call may take"
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
    "dataset": ["columns", "eval_split"],
    "eval_prompts": ["eval_targets", "eval_images"],
}


class DataConfig(_Strict):
    """Where prompts come from: exactly one of `prompts`, `jsonl`, `dataset` and `use`."""

    # keys of a source's own stand only beside `use`; checked below
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    prompts: _Text | None = Field(default=None, description="text file, one prompt per line")
    targets: _Text | None = Field(default=None, description="folder of target pictures named by line number from 1")
    images: _Text | None = Field(default=None, description="folder of source pictures, likewise")
    jsonl: _Text | None = Field(default=None, description="JSON lines with prompt, target, image")
    dataset: _Text | None = Field(default=None, description="Hugging Face dataset: hub id or folder")
    split: _Text = Field(default="train", description="the dataset's split")
    columns: dict[str, str] = Field(default_factory=dict, description="its columns for prompt, target, image")
    use: _Text | None = Field(default=None, description="`package.module:function` called with split='train' or 'eval'")
    eval_prompts: _Text | None = Field(default=None, description="held-out prompts, as `prompts`")
    eval_targets: _Text | None = Field(default=None, description="their target pictures")
    eval_images: _Text | None = Field(default=None, description="their source pictures")
    eval_jsonl: _Text | None = Field(default=None, description="held-out prompts, as `jsonl`")
    eval_split: _Text | None = Field(default=None, description="the dataset's split of held-out prompts")
    eval_fraction: float | None = Field(default=None, gt=0, lt=1, description="share of the prompts to hold out")

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        sources = [name for name in ("prompts", "jsonl", "dataset", "use") if getattr(self, name) is not None]
        if len(sources) != 1:
            raise PydanticCustomError(
                TWO_SOURCES,
                "give exactly one of prompts, jsonl, dataset and use; got {sources}",
                {"sources": " and ".join(sources) or "none"},
            )
        unknown = next(iter(self.model_extra or {}), None)
        if unknown and self.use is None:
            raise ValueError(f"unknown key '{unknown}'{nearest(unknown, type(self).model_fields)}")
        kinds = [
            n for n in ("eval_prompts", "eval_jsonl", "eval_split", "eval_fraction") if getattr(self, n) is not None
        ]
        if len(kinds) > 1:
            raise ValueError(
                f"give one kind of held-out prompts; got {' and '.join(kinds)} (the value null takes a key out)"
            )
        for owner, companions in _COMPANIONS.items():
            alone = [n for n in companions if getattr(self, owner) is None and getattr(self, n)]
            if alone:  # without this check it would be ignored
                raise ValueError(f"'{alone[0]}' goes with '{owner}', which is not set")
        return self


class TrainerConfig(_Strict):
    """The numbers of `grpokit.Trainer`, and the parameters of the advantage and the objective."""

    steps: _Total = Field(default=200, ge=1)
    prompts_per_step: _Size = Field(default=4, ge=1)
    group_size: _Size = Field(default=8, ge=2)
    micro_batch_size: _Size = Field(default=8, ge=1)
    rollout_batch_size: _Size | None = Field(default=None, ge=1, description="the most rows drawn at a time; null: all")
    updates_per_rollout: _Size = Field(default=1, ge=1, description="passes over a rollout")
    minibatches: _Size = Field(default=1, ge=1, description="optimizer steps per pass")
    learning_rate: float = Field(default=5e-6, gt=0)
    warmup_steps: _Total = Field(default=0, ge=0)
    schedule: Literal["constant", "cosine"] = "constant"
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    device: Annotated[Literal["auto", "cpu", "cuda"], BeforeValidator(_device)] = "auto"
    advantage: _Text | Component = "group"
    objective: _Text | Component = "grpo"
    ratio: Literal["token", "sequence"] | None = None
    clip_range: float | None = Field(default=None, gt=0)
    clip_range_high: float | None = Field(default=None, gt=0)
    kl: Literal["k1", "k2", "k3", "gaussian"] | None = None
    kl_coef: float | None = Field(default=None, ge=0)
    entropy_coef: float | None = None
    max_logprob_diff: float | None = Field(
        default=None,
        gt=0,
        description="largest mean difference of rollout and training log-probs, in nats; null: by precision",
    )
    max_zero_std_steps: _Total | None = Field(
        default=20, ge=1, description="steps in a row in which no group has any spread, before the run stops"
    )

    @model_validator(mode="after")
    def _rows_that_fit(self) -> TrainerConfig:
        rows = self.prompts_per_step * self.group_size
        if rows > 10_000_000:
            raise ValueError(f"prompts_per_step x group_size must be at most 10,000,000 rows, got {rows:,}")
        return self


class RunSettings(_Strict):
    """What a run leaves behind."""

    dir: _Text | None = Field(default=None, description="the run folder; by default runs/<config's name>")
    save_every: _Total = Field(default=0, ge=0, description="checkpoint every n steps; 0: only at the end")
    keep_last: _Total | None = Field(default=3, ge=1, description="how many step checkpoints to keep; null: all")
    best: _Text | None = Field(default=None, description="a held-out score; its best checkpoint is kept as well")
    record: bool = Field(default=False, description="keep every rollout in rollouts/, for rescore and redraw")
    eval_every: _Total = Field(default=0, ge=0, description="evaluate every n steps; 0: only before and after")
    eval_samples: _Size = Field(default=1, ge=1, description="samples per held-out prompt")
    trackers: list[_Tracker] = Field(default_factory=list, description="tensorboard, wandb, mlflow, ...")
    threads: _Size | None = Field(default=None, ge=1, le=1024, description="torch's CPU threads")

    @model_validator(mode="after")
    def _a_folder_of_its_own(self) -> RunSettings:
        name = None if self.dir is None else Path(self.dir).name
        if name in ("", ".."):
            raise ValueError(f"dir must name a folder of the run's own, got {self.dir!r}")
        if name is not None and ("\0" in str(self.dir) or len(name.encode(errors="replace")) > 200):
            raise ValueError(f"dir must be a name that a folder can have, of at most 200 bytes, got {shown(self.dir)}")
        return self


class RunConfig(_Strict):
    """A whole run."""

    seed: Annotated[int, BeforeValidator(_whole)] = Field(default=42, ge=-(2**63), lt=2**63)
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
                "every reward has the weight 0, so all are monitors and none is trained on; give at least one another "
                "weight"
            )
        return rewards

    _source: Source | None = PrivateAttr(default=None)

    def place(self, *path: str | int) -> str:
        """Where a key stands, to begin a message with; empty for a config that was not read from text.

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
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"The config file {path} does not exist (looked in {Path.cwd()}).") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path} is a folder; expected a config file.") from error
    except (OSError, ValueError) as error:  # the second: not UTF-8, or a name that no file can have
        raise ConfigError(f"The config file {path} cannot be read as UTF-8 text: {one_line(error)}.") from error
    return parse(text, str(path), overrides)


def parse(
    text: str, name: str, overrides: Sequence[str] = (), *, prepare: Callable[[dict[str, Any]], None] | None = None
) -> RunConfig:
    """As `load`, from YAML text.

    Args:
        text: the config.
        name: stands for the file in messages.
        overrides: `key=value` texts.
        prepare: may change the plain data in place, before the overrides are applied.

    Raises:
        ConfigError: as in `load`.
    """
    data, source = read(text, name)
    if not isinstance(data, dict):
        got = "an empty file" if data is None else shown(data)
        raise ConfigError(f"{name}: expected keys such as policy, data and rewards, got {got}.")
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
    """Where two resolved configs differ: (dotted key, before, after), None standing for "not there".

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
