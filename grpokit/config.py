"""A run's config: YAML with overrides, validated, with errors that name the line and the nearest key.

The file says what to build and with which flat parameters; building is for `grpokit.run`. YAML is read as YAML 1.2
reads it where people trip over 1.1: `5e-6` is a number, `no` and `off` are texts, a repeated key is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from grpokit.errors import ConfigError, nearest


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Component(BaseModel):
    """`use: name` and the component's own flat parameters beside it."""

    model_config = ConfigDict(extra="allow")

    use: str = Field(description="a plugin's name for it, `plugin:name`, or `package.module:function`")

    @property
    def params(self) -> dict[str, Any]:
        """Everything that goes to the factory."""
        return dict(self.model_extra or {})


class RewardConfig(Component):
    """A reward in the mix; keys beside these go to its factory."""

    weight: float = Field(default=1.0, allow_inf_nan=False, description="factor in the weighted sum")
    name: str | None = Field(default=None, description="its name in metrics; by default what `use` says")
    on_error: Literal["stop", "skip"] = Field(default="stop", description="what an exception does")
    skip_limit: float = Field(
        default=0.5, ge=0, le=1, description="with on_error: skip, the largest share of rows that may be lost to it"
    )


_COMPANIONS = {
    "prompts": ["targets", "images"],
    "dataset": ["columns"],
    "eval_prompts": ["eval_targets", "eval_images"],
}


class DataConfig(_Strict):
    """Where prompts come from: exactly one of `prompts`, `jsonl`, `dataset` and `use`."""

    model_config = ConfigDict(extra="allow")  # only beside `use`; checked below

    prompts: str | None = Field(default=None, description="text file, one prompt per line")
    targets: str | None = Field(default=None, description="folder of target pictures named by line number from 1")
    images: str | None = Field(default=None, description="folder of source pictures, likewise")
    jsonl: str | None = Field(default=None, description="JSON lines with prompt, target, image")
    dataset: str | None = Field(default=None, description="Hugging Face dataset: hub id or folder")
    split: str = Field(default="train", description="the dataset's split")
    columns: dict[str, str] = Field(default_factory=dict, description="its columns for prompt, target, image")
    use: str | None = Field(default=None, description="`package.module:function` called with split='train' or 'eval'")
    eval_prompts: str | None = Field(default=None, description="held-out prompts, as `prompts`")
    eval_targets: str | None = Field(default=None, description="their target pictures")
    eval_images: str | None = Field(default=None, description="their source pictures")
    eval_jsonl: str | None = Field(default=None, description="held-out prompts, as `jsonl`")
    eval_split: str | None = Field(default=None, description="the dataset's split of held-out prompts")
    eval_fraction: float | None = Field(default=None, gt=0, lt=1, description="share of the prompts to hold out")

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        given = [name for name in ("prompts", "jsonl", "dataset", "use") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "give exactly one of prompts, jsonl, dataset and use; "
                + (f"got {', '.join(given)}" if given else "got none")
            )
        unknown = next(iter(self.model_extra or {}), None)
        if unknown and self.use is None:
            raise ValueError(f"unknown key '{unknown}'{nearest(unknown, type(self).model_fields)}")
        held = [
            n for n in ("eval_prompts", "eval_jsonl", "eval_split", "eval_fraction") if getattr(self, n) is not None
        ]
        if len(held) > 1:
            raise ValueError(f"give one kind of held-out prompts; got {', '.join(held)}")
        for owner, companions in _COMPANIONS.items():
            lost = [n for n in companions if getattr(self, owner) is None and getattr(self, n)]
            if lost:  # else it would be passed over in silence
                raise ValueError(f"'{lost[0]}' goes with '{owner}', which is not given")
        return self


class TrainerConfig(_Strict):
    """The numbers of `grpokit.Trainer`, and the parameters of the advantage and the objective."""

    steps: int = Field(default=200, ge=1)
    prompts_per_step: int = Field(default=4, ge=1)
    group_size: int = Field(default=8, ge=2)
    micro_batch_size: int = Field(default=8, ge=1)
    rollout_batch_size: int | None = Field(default=None, ge=1, description="the most rows drawn at a time; null: all")
    updates_per_rollout: int = Field(default=1, ge=1, description="passes over a rollout")
    minibatches: int = Field(default=1, ge=1, description="optimizer steps per pass")
    learning_rate: float = Field(default=5e-6, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    schedule: Literal["constant", "cosine"] = "constant"
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    advantage: str | Component = "group"
    objective: str | Component = "grpo"
    ratio: Literal["token", "sequence"] | None = None
    clip_range: float | None = Field(default=None, gt=0)
    clip_range_high: float | None = Field(default=None, gt=0)
    kl: Literal["k1", "k2", "k3", "gaussian"] | None = None
    kl_coef: float | None = Field(default=None, ge=0)
    entropy_coef: float | None = None
    max_logprob_gap: float | None = Field(
        default=None, gt=0, description="between sampler and replay, in nats; null: by precision"
    )
    max_quiet_steps: int | None = Field(
        default=20, ge=1, description="steps in a row in which no group has any spread, before the run stops"
    )


class RunSettings(_Strict):
    """What a run leaves behind."""

    dir: str | None = Field(default=None, description="the run folder; by default runs/<config's name>")
    save_every: int = Field(default=0, ge=0, description="checkpoint every n steps; 0: only at the end")
    keep_last: int | None = Field(default=3, ge=1, description="how many step checkpoints to keep; null: all")
    best: str | None = Field(default=None, description="a held-out score; its best checkpoint is kept as well")
    record: bool = Field(default=False, description="keep every rollout in rollouts/, for rescore and redraw")
    eval_every: int = Field(default=0, ge=0, description="evaluate every n steps; 0: only before and after")
    eval_samples: int = Field(default=1, ge=1, description="samples per held-out prompt")
    trackers: list[str] = Field(default_factory=list, description="tensorboard, wandb, mlflow, ...")
    threads: int | None = Field(default=None, ge=1, description="torch's CPU threads")


class RunConfig(_Strict):
    """A whole run."""

    seed: int = 42
    policy: Component
    data: DataConfig
    rewards: list[RewardConfig] = Field(min_length=1)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    run: RunSettings = Field(default_factory=RunSettings)


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a config file and apply `key=value` overrides such as `trainer.steps=50` or `rewards.0.weight=1`.

    Raises:
        ConfigError: the file is missing or no YAML, or the config is wrong; with file and line where there is one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"The config file {path} does not exist (looked in {Path.cwd()}).") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The config file {path} cannot be read as UTF-8 text: {error}.") from error
    return parse(text, str(path), overrides)


def parse(text: str, name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """As `load`, from YAML text; `name` stands for the file in messages."""
    source = _Source(name)
    try:
        node = yaml.compose(text, Loader=_Loader)
        data = None if node is None else _Loader("").construct_document_with(node, source)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{name}{line}: not YAML: {error.problem or error.context}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(data, dict):
        got = "an empty file" if data is None else type(data).__name__
        raise ConfigError(f"{name}: expected keys such as policy, data and rewards, got {got}.")
    for override in overrides:
        _apply(data, override, source)
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error, source)) from error


def resolved(config: BaseModel) -> dict[str, Any]:
    """The config as plain data, defaults included; `parse` reads it back to the same config.

    A null is kept where it was given, since it may stand for something else than the default.
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


@dataclass
class _Source:
    """Where each key stands: path of keys -> "file, line n" or the override."""

    name: str
    places: dict[tuple[str | int, ...], str] = field(default_factory=dict)

    def place(self, path: tuple[str | int, ...]) -> str:
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, self.name)


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's numbers and booleans, and without repeated keys."""

    def construct_document_with(self, node: yaml.Node, source: _Source) -> Any:
        self._note(node, (), source)
        return self.construct_document(node)

    def _note(
        self, node: yaml.Node, path: tuple[str | int, ...], source: _Source, inside: tuple[yaml.Node, ...] = ()
    ) -> None:
        source.places[path] = f"{source.name}, line {node.start_mark.line + 1}"
        if any(node is outer for outer in inside):
            raise yaml.MarkedYAMLError(problem="an anchor stands inside itself", problem_mark=node.start_mark)
        inside = (*inside, node)
        if isinstance(node, yaml.SequenceNode):
            for i, child in enumerate(node.value):
                self._note(child, (*path, i), source, inside)
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, child in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError(
                        problem="expected a text as key, got a group in brackets or braces",
                        problem_mark=key.start_mark,
                    )
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key '{key.value}' stands twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
                self._note(child, (*path, key.value), source, inside)
                source.places[(*path, key.value)] = f"{source.name}, line {key.start_mark.line + 1}"


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in entries if tag not in {"tag:yaml.org,2002:bool", "tag:yaml.org,2002:float"}
    ]
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"),
    list("-+0123456789."),
)


def parse_value(text: str) -> Any:
    """Read the value of a `key=value` argument as a config file would.

    Raises:
        yaml.YAMLError: it is not YAML.

    >>> parse_value("5e-6"), parse_value("no")
    (5e-06, 'no')
    """
    return yaml.load(text, Loader=_Loader)


def _apply(data: dict[str, Any], override: str, source: _Source) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"The override {override!r} is not of the form key=value, such as trainer.steps=50.")
    try:
        value = parse_value(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"The override {override!r} has a value that is not YAML.") from error
    path: list[str | int] = []
    here: Any = data
    parts = key.split(".")
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        if isinstance(here, list):
            if not part.isdecimal() or int(part) >= len(here):
                raise ConfigError(
                    f"The override {override!r}: {'.'.join(parts[:i])} is a list of {len(here)}; use a number "
                    f"from 0 to {len(here) - 1} for {part!r}."
                )
            step: str | int = int(part)
        elif isinstance(here, dict):
            step = part
            if not last and part not in here:
                here[part] = {}
        else:
            raise ConfigError(
                f"The override {override!r}: {'.'.join(parts[:i])} is a single value, not a group of keys."
            )
        path.append(step)
        if last:
            here[step] = value
            source.places[tuple(path)] = f"override {override!r}"
        else:
            here = here[step]


def _explain(error: ValidationError, source: _Source) -> str:
    lines = []
    for issue in error.errors():
        path = tuple(p for p in issue["loc"] if p not in ("str", "Component"))
        where, key = source.place(path), ".".join(map(str, path))
        if issue["type"] == "extra_forbidden":
            known = _fields(path[:-1])
            lines.append(
                f"{where}: unknown key '{key}'{nearest(str(path[-1]), known)}. Known here: {', '.join(known)}."
            )
        elif issue["type"] == "missing":
            lines.append(f"{where}: the key '{key}' is missing.")
        elif issue["type"] == "value_error":
            lines.append(f"{where}: {key or 'config'}: {issue['ctx']['error']}.")
        else:
            got = issue["input"]
            shown = repr(got) if isinstance(got, (str, int, float, bool, type(None))) else type(got).__name__
            lines.append(f"{where}: {key}: {issue['msg'][0].lower()}{issue['msg'][1:]}, got {shown}.")
    return "\n".join(dict.fromkeys(lines))


def _fields(path: tuple[str | int, ...]) -> list[str]:
    model: Any = RunConfig
    for part in path:
        if isinstance(part, str):
            model = {"trainer": TrainerConfig, "run": RunSettings, "data": DataConfig}.get(part, model)
    return list(model.model_fields)
