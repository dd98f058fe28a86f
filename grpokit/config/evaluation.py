"""An evaluation: prompts and rewards that take the place of a run's own, or with which samples in files are scored.

It comes from a file, from a plugin by its name, or from the rewards that a command line names. Everything else, such as
the policy and the device, is the run's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from grpokit import files, registry
from grpokit.config import presets
from grpokit.config.component_names import with_own_names
from grpokit.config.overrides import parse_parameters
from grpokit.config.parts import Component, DataConfig, EvalConfig, PathText, RewardConfig, Text
from grpokit.config.schema import Located, RunConfig, validate
from grpokit.config.yaml_source import KeyPlaces, read_yaml, to_yaml
from grpokit.errors import ConfigError, UsageError
from grpokit.registry.specs import Spec
from grpokit.settings import Count, SeedSettings


class EvaluationConfig(Located, SeedSettings):
    """An evaluation file."""

    data: DataConfig | None = Field(default=None, description="the prompts; null: the run's held-out prompts")
    rewards: Annotated[list[RewardConfig], Field(min_length=1)]
    samples: Count = Field(default=1, description="samples per prompt")
    by: list[Text] = Field(default_factory=list, description="columns of the prompts whose values have scores as well")
    gold: list[Text | Component] | None = Field(
        default=None,
        description="with --taught: rewards that are measured though nobody trains on them; null: the cheap ones",
    )
    files: PathText | None = Field(default=None, description="pictures or records that are scored, without a policy")


def is_of_evaluation(word: str) -> bool:
    """Whether a word `key=value` changes an evaluation, and not the run's config."""
    return word.partition("=")[0].partition(".")[0] in EvaluationConfig.model_fields


def put_in(config: RunConfig, evaluation: EvaluationConfig) -> RunConfig:
    """A run's config with an evaluation's rewards, and its prompts and seed, in place of its own."""
    changes: dict[str, Any] = {"rewards": evaluation.rewards, "phases": []}
    if evaluation.data is not None:
        samples = EvalConfig(samples=evaluation.samples)
        changes |= {"data": evaluation.data, "seed": evaluation.seed, "eval": samples}
    elif "seed" in evaluation.model_fields_set:
        changes["seed"] = evaluation.seed
    changed = config.model_copy(update=changes)
    source = evaluation._source or KeyPlaces("")
    places = {place: line for place, line in source.places.items() if place}
    for place, line in config._source.places.items() if config._source else ():
        if place and place[0] not in changes:
            places[place] = line
    changed._source = KeyPlaces(source.name, places)
    return changed


def is_evaluation_file(name: str) -> bool:
    """Whether a YAML file is an evaluation rather than a run's config."""
    return _text_of_file(name) is not None


def _text_of_file(name: str) -> str | None:
    """The text of an evaluation file; None where a name stands for something else."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml") or not path.is_file() or registry.named("preset", name):
        return None
    text = files.read_text(path, kind="evaluation file", error=ConfigError, most=2**20)
    keys, _ = read_yaml(text, name)
    return None if isinstance(keys, dict) and "policy" in keys else text


def read_evaluation(name: str, overrides: Sequence[str] = ()) -> EvaluationConfig:
    """An evaluation by a plugin's name for it, from a file, or with the rewards of a preset, a config file or a run.

    Args:
        name: the evaluation's or the config's.
        overrides: `key=value` texts that change it.

    Raises:
        ConfigError: there is no such evaluation, or it is wrong; the message names the file and the line.
    """
    if registry.named("evaluation", name):
        _, spec = registry.find("evaluation", name)
        return of_plugin(spec, overrides)
    text = _text_of_file(name)
    if text is not None:
        return validate(EvaluationConfig, text, name, overrides)
    path = Path(name)
    if path.suffix not in (".yaml", ".yml") and not os.path.isdir(path) and not presets.names_preset(name):
        raise ConfigError(f"{registry.unknown(name, 'evaluation')} An evaluation file ends in .yaml.")
    config, _ = presets.read_config(name, overrides)
    if not config.rewards:
        raise ConfigError(f"{name} has no reward to score with. Name an evaluation, or a run or preset with rewards.")
    evaluation = EvaluationConfig(rewards=config.rewards)
    evaluation._source = config._source
    return evaluation


def of_plugin(spec: Spec, overrides: Sequence[str] = ()) -> EvaluationConfig:
    """An evaluation by what its plugin announces.

    Raises:
        PluginError: it cannot be read.
        ConfigError: it is wrong.
    """
    evaluation = validate(EvaluationConfig, presets.preset_text(spec), f"evaluation {spec.name}", overrides)
    return with_own_names(evaluation, spec)


def of_rewards(names: Sequence[str], words: Sequence[str]) -> EvaluationConfig:
    """An evaluation by rewards that a command line names.

    Args:
        names: of the rewards.
        words: `NAME.KEY=VALUE` texts with their parameters and weights; for a single reward also `KEY=VALUE`.

    Raises:
        ConfigError: a word names none of the rewards, or is wrong.
    """
    assignments: dict[str, list[str]] = {name: [] for name in names}
    for word in words:
        owners = [name for name in names if word.startswith(f"{name}.")] or names
        if len(owners) > 1:
            expected = " or ".join(f"{name}.KEY=VALUE" for name in names)
            raise UsageError(f"'{word}' names no parameter of {' or '.join(names)}. Expected {expected}.")
        assignments[owners[0]].append(word.removeprefix(f"{owners[0]}."))
    rewards: list[Mapping[str, Any]] = []
    for name, own in assignments.items():
        rewards.append({"use": name, **parse_parameters(own)})
    evaluation = validate(EvaluationConfig, to_yaml({"rewards": rewards}), "--reward")
    evaluation._source = KeyPlaces("--reward")  # in no line of a file
    return evaluation
