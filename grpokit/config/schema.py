"""A run's config: its keys with their types, defaults and bounds, and how it is read from YAML with overrides.

The config names what to build, with flat parameters. `grpokit.runs.build` builds it, and asks the config for the place
of a key that turns out wrong. A value of the wrong type is refused, never converted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, model_validator

from grpokit import files
from grpokit.config.mistakes import explain
from grpokit.config.overrides import apply
from grpokit.config.parts import (
    Component,
    DataConfig,
    EvalConfig,
    PathText,
    PhaseConfig,
    PhaseTrainerConfig,
    RewardConfig,
    Strict,
    Text,
    TrainerConfig,
)
from grpokit.config.replaced import leave_out
from grpokit.config.yaml_source import KeyPlaces, read_yaml
from grpokit.errors import ConfigError, UsageError, brief, reword
from grpokit.settings import Count, SeedSettings, Total, Whole

_Tracker = Literal[  # accelerate's, which is too heavy to be asked
    "aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb"
]


class StopConfig(Strict):
    """Ends a run whose held-out score has stopped rising."""

    reward: Text = Field(default="reward", description="the held-out score: a reward's name, or reward for the sum")
    patience: Count = Field(description="evaluations in a row without a better score after which the run ends")


class TrackersConfig(Strict):
    """Other places that metrics go to."""

    use: list[_Tracker] = Field(default_factory=list, description="tensorboard, wandb, mlflow and others")
    project: Text | None = Field(default=None, description="their project; null: grpokit")
    name: Text | None = Field(default=None, description="the run's name there; null: that of the run folder")
    tags: list[Text] = Field(default_factory=list, description="the run's tags there")


class RunSettings(Strict):
    """What a run saves."""

    dir: PathText | None = Field(default=None, description="the run folder; by default runs/<config's name>")
    save_every: Whole = Field(default=0, description="checkpoint every n steps; 0: by the clock and at the end")
    save_minutes: float = Field(
        default=10.0, ge=0, description="checkpoint after a step if this time has passed since the last one; 0: never"
    )
    keep_last: Total | None = Field(default=3, description="how many step checkpoints to keep; null: all")
    best: Text | None = Field(
        default=None, description="a held-out score; the checkpoint with its best value is kept as well"
    )
    stop: StopConfig | None = Field(
        default=None, description="ends the run early, as in {reward: ocr, patience: 5}; null: it runs all its steps"
    )
    record: bool = Field(default=False, description="keep every rollout in rollouts/, for evaluate and replay")
    threads: int | None = Field(default=None, ge=1, le=1024, description="torch's CPU threads")
    sharding: Literal["fsdp2", "fsdp2-offload"] | None = Field(
        default=None, description="spread the policy's weights over the processes; offload: keep the parts on the CPU"
    )
    process_timeout: float = Field(
        default=1800.0, ge=1, le=864_000, description="seconds that a process waits for the others before it gives up"
    )

    @model_validator(mode="after")
    def _a_folder_of_its_own(self) -> RunSettings:
        if self.dir is None:
            return self
        if Path(self.dir).name in ("", "..") or "\0" in self.dir:
            raise ValueError(f"dir must name a folder for this run alone, got {self.dir!r}")
        return self


class Located(Strict):
    """Keys that know their places in the text that they were read from."""

    _source: KeyPlaces | None = PrivateAttr(default=None)
    _phase: int = PrivateAttr(default=-1)  # of which this is the config

    def place(self, *path: str | int) -> str:
        """The place of a key, to begin a message with; empty for a config that was not read from text.

        >>> parse("policy: {use: p}\\ndata: {use: d}\\nrewards: [{use: r}]", "run.yaml").place("rewards", 0)
        'run.yaml, line 3: rewards.0: '
        """
        if self._source is None:
            return ""
        own = ("phases", self._phase, *path)
        path = own if own in self._source.places else path
        found = self._source.place(path)
        return f"{found}: {'.'.join(map(str, path))}: " if found else ""

    @contextmanager
    def at(self, *path: str | int) -> Iterator[None]:
        """Inside, errors begin with the place of a key."""
        try:
            yield
        except UsageError as error:
            raise reword(error, f"{self.place(*path)}{error}") from error


_Model = TypeVar("_Model", bound=Located)


class RunConfig(Located, SeedSettings):
    """A whole run."""

    policy: Component
    data: DataConfig
    eval: EvalConfig = Field(default_factory=EvalConfig)
    rewards: list[RewardConfig]
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    phases: list[PhaseConfig] = Field(default_factory=list, description="policies that learn in turn")
    rounds: Count = Field(default=1, description="how many times the phases are repeated")
    run: RunSettings = Field(default_factory=RunSettings)
    trackers: TrackersConfig = Field(default_factory=TrackersConfig)

    @model_validator(mode="after")
    def _keys_that_go_together(self) -> RunConfig:
        if self.eval.split is not None and self.data.dataset is None:
            raise ValueError("eval.split needs data.dataset, which is not set (set it to null to remove it)")
        if self.phases and "steps" in self.trainer.model_fields_set:
            raise ValueError("trainer.steps cannot be set with phases: each phase has steps, and rounds repeats them")
        if len({phase.name for phase in self.phases}) < len(self.phases):
            raise ValueError("two phases have the same name; give each its own")
        if self.rounds > 1 and not self.phases:
            raise ValueError("rounds repeats phases, but there are no phases")
        return self

    def phased(self) -> list[tuple[PhaseConfig, RunConfig]]:
        """Each phase with the config of a run that would consist of it alone; a single one without phases.

        Raises:
            UsageError: the keys of a phase and those of the run do not fit together.
        """
        if not self.phases:
            return [(PhaseConfig.model_construct(name="", steps=self.trainer.steps), self)]
        views = []
        for place, phase in enumerate(self.phases):
            own = {name: getattr(phase.trainer, name) for name in phase.trainer.model_fields_set}
            trainer = self.trainer.model_copy(update={**own, "steps": self.rounds * phase.steps})
            with self.at("phases", place, "trainer"):
                trainer.check_together()
            rewards = self.rewards if phase.rewards is None else phase.rewards
            view = self.model_copy(update={"trainer": trainer, "rewards": rewards})
            view._phase = place
            views.append((phase, view))
        return views


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a config file and apply `key=value` overrides such as `trainer.steps=50` or `rewards.0.weight=1`.

    Raises:
        ConfigError: the file is missing or not YAML, or the config is wrong. The message names the file and, if known,
            the line.
    """
    text = files.read_text(path, kind="config file", error=ConfigError, most=2**20)
    return parse(text, str(path), overrides)


def parse(text: str, name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """As `load_config`, from YAML text.

    Args:
        text: the config.
        name: names the text in messages, such as its file.
        overrides: `key=value` texts.

    Raises:
        ConfigError: as in `load_config`.
    """
    config = validate(RunConfig, text, name, overrides)
    config.phased()  # which refuses keys that do not fit together
    return config


def validate(model: type[_Model], text: str, name: str, overrides: Sequence[str] = ()) -> _Model:
    """What YAML text and overrides say, as a model that knows the places of its keys; arguments as for `parse`."""
    data, source = read_yaml(text, name)
    if not isinstance(data, dict):
        content = "an empty file" if data is None else brief(data)
        *first, last = (key for key, field in model.model_fields.items() if field.is_required())
        needed = f"{', '.join(first)} and {last}" if first else last
        raise ConfigError(f"{name}: expected keys such as {needed}, got {content}.", page="configs")
    for override in overrides:
        apply(data, override, source)
    for override in overrides:
        leave_out(data, override, source)
    try:
        config = model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, source, model), page="configs") from error
    config._source = source
    return config


def to_dict(config: BaseModel) -> dict[str, Any]:
    """The config as plain data, defaults included; `parse` reads it back to the same config.

    A null that the config sets is kept, since it may differ from the default. A phase has only the keys that it
    changes; without phases, no key is about them.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in value]
        return to_dict(value) if isinstance(value, BaseModel) else value

    given = config.model_fields_set
    keys = {name: plain(value) for name, value in config if value is not None or name in given}
    if isinstance(config, PhaseTrainerConfig):
        return {name: value for name, value in keys.items() if name in given}
    if isinstance(config, RunConfig):
        if config.phases:
            del keys["trainer"]["steps"]
        else:
            keys = {name: value for name, value in keys.items() if name not in ("phases", "rounds")}
    return keys


def differences(before: Any, after: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two resolved configs differ: (dotted key, before, after), None for a key that is missing.

    >>> list(differences({"a": {"b": 1}, "c": [1]}, {"a": {"b": 2}, "c": [1, 3]}))
    [('a.b', 1, 2), ('c.1', None, 3)]
    """
    if isinstance(before, list) and isinstance(after, list):
        before, after = (dict(enumerate(x)) for x in (before, after))
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            inner = f"{key}.{name}" if key else str(name)
            yield from differences(before.get(name), after.get(name), inner)
    elif before != after:
        yield key, before, after


def texts(settings: Any) -> Iterator[str]:
    """All texts among the values of a resolved config or a part of it.

    >>> list(texts({"use": "a", "params": [{"b": "c"}, 1]}))
    ['a', 'c']
    """
    for value in settings.values() if isinstance(settings, dict) else settings:
        if isinstance(value, str):
            yield value
        elif isinstance(value, (dict, list)):
            yield from texts(value)
