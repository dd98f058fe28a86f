"""An evaluation: prompts, rewards and samples that take the place of a run's own, whatever the run was trained on.

It comes from a file or, by its name, from a plugin. Everything else, such as the policy and the device, is the run's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from grpokit import files, registry
from grpokit.config.component_names import with_own_names
from grpokit.config.parts import DataConfig, EvalConfig, Rewards, Strict, Text
from grpokit.config.presets import text_of
from grpokit.config.schema import RunConfig, validated
from grpokit.config.yaml_source import Source
from grpokit.errors import ConfigError, PluginError
from grpokit.registry.specs import Spec
from grpokit.settings import Count, SeedSettings


class EvaluationConfig(Strict, SeedSettings):
    """An evaluation file."""

    data: DataConfig
    rewards: Rewards
    samples: Count = Field(default=1, description="samples per prompt")
    by: list[Text] = Field(default_factory=list, description="columns of the prompts whose values have scores as well")


def is_of_evaluation(word: str) -> bool:
    """Whether a word `key=value` changes an evaluation, and not the run's config."""
    return word.partition("=")[0].partition(".")[0] in EvaluationConfig.model_fields


def put_in(config: RunConfig, name: str, overrides: Sequence[str] = ()) -> tuple[RunConfig, EvaluationConfig]:
    """A run's config with an evaluation in place of its own prompts, rewards and seed; and the evaluation.

    Args:
        config: the run's.
        name: the evaluation's: a plugin's name for it, or a file.
        overrides: `key=value` texts that change the evaluation.

    Raises:
        ConfigError: there is no such evaluation, or it is wrong; the message names the file and the line.
    """
    evaluation, source = _read(name, overrides)
    changes = {key: getattr(evaluation, key) for key in ("data", "rewards", "seed")}
    changes |= {"eval": EvalConfig(samples=evaluation.samples), "phases": []}
    changed = config.model_copy(update=changes)
    before = config._source.places if config._source else {}
    own = {place: line for place, line in source.places.items() if place}
    changed._source = Source(source.name, {**before, **own})
    return changed, evaluation


def _read(name: str, overrides: Sequence[str]) -> tuple[EvaluationConfig, Source]:
    """An evaluation of a plugin or a file, with the places of its keys."""
    path = Path(name)
    is_file = path.suffix in (".yaml", ".yml") or os.path.isfile(path)
    if is_file and not registry.named("evaluation", name):
        text = files.read_text(path, kind="evaluation file", error=ConfigError, most=2**20)
        return validated(EvaluationConfig, text, name, overrides)
    try:
        _, spec = registry.find("evaluation", name)
        return of_plugin(spec, overrides, title=f"evaluation {name}")
    except PluginError as error:
        raise ConfigError(f"{error} An evaluation file ends in .yaml.") from error


def of_plugin(spec: Spec, overrides: Sequence[str] = (), *, title: str = "") -> tuple[EvaluationConfig, Source]:
    """An evaluation by what its plugin announces, with the places of its keys; `title` names it in messages.

    Raises:
        PluginError: it cannot be read.
        ConfigError: it is wrong.
    """
    evaluation, source = validated(EvaluationConfig, text_of(spec), title or f"evaluation {spec.name}", overrides)
    return with_own_names(evaluation, spec), source
