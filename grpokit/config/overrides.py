"""Words of the form `key=value`: overrides of a config, and parameters of a component."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from grpokit.config.yaml_source import Source, load_value, problem
from grpokit.errors import ConfigError, UsageError, shown


def parse_value(text: str) -> Any:
    """Read the value of a `key=value` argument as a config file would, except that it has no comments.

    Raises:
        yaml.YAMLError: it is not YAML.

    >>> parse_value("5e-6"), parse_value("010"), parse_value("no"), parse_value("1_000")
    (5e-06, 10, 'no', '1_000')
    >>> parse_value("runs/try #2"), parse_value("2026 #2"), parse_value("[a, 'b #c']")
    ('runs/try #2', '2026 #2', ['a', 'b #c'])
    """
    bare = not text.lstrip().startswith(("'", '"', "[", "{", "|", ">", "!", "&"))
    return text.strip() if bare and re.search(r"(^|\s)#", text) else load_value(text)


def parse_parameters(words: Sequence[str]) -> dict[str, Any]:
    """Words of a command line -> parameters of a component.

    Raises:
        UsageError: a word is not of the form key=value, or its value is not YAML.
    """
    parameters = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"Expected a parameter as key=value, got '{word}'.")
        try:
            parameters[key] = parse_value(value)
        except yaml.YAMLError as error:
            raise UsageError(
                f"The value of {key} is not YAML: {value!r} ({problem(error)}). Put quotes round a text with brackets, "
                "braces or a colon."
            ) from error
    return parameters


def apply(data: dict[str, Any], override: str, source: Source) -> None:
    """Set one key of `data`, and note in `source` that the override set it.

    Args:
        data: the config, changed in place; groups that are not there are made.
        override: such as `trainer.steps=50` or `rewards.0.weight=1`; the value is YAML.
        source: the places of the config's keys.

    Raises:
        ConfigError: it is not of the form key=value, its value is not YAML, or its key leads into a single value or
            past the end of a list.
    """
    key, equals, text = override.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        raise ConfigError(
            f"The override {shown(override)} is not of the form key=value, such as trainer.steps=50.", page="configs"
        )
    try:
        value = parse_value(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"The override {shown(override)} has a value that is not YAML ({problem(error)}). Put quotes round a text "
            "with brackets, braces or a colon.",
            page="configs",
        ) from error
    path: list[str | int] = []
    here: Any = data
    for i, part in enumerate(parts):
        last, group = i == len(parts) - 1, ".".join(parts[:i])
        if isinstance(here, list):
            if part not in map(str, range(len(here))):
                numbers = "0" if len(here) == 1 else f"a number from 0 to {len(here) - 1}"
                remedy = f"write {numbers} in place of {shown(part)}" if here else "it has no entry"
                raise ConfigError(
                    f"The override {shown(override)}: {group} is a list of {len(here)}; {remedy}.", page="configs"
                )
            step: str | int = int(part)
        elif isinstance(here, dict):
            step = part
            if not last and here.get(part) is None:  # the group is missing, or nothing follows its colon
                here[part] = {}
        else:
            raise ConfigError(
                f"The override {shown(override)}: {group} is a single value, not a group of keys.", page="configs"
            )
        path.append(step)
        if last:
            here[step] = value
        else:
            here = here[step]
    source.override(tuple(path), override)
