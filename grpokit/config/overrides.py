"""Words of the form `key=value`: overrides of a config, values of a sweep, and parameters of a component."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from grpokit.config.yaml_source import KeyPlaces, read_yaml
from grpokit.errors import ConfigError, brief


def key_value(word: str, *, what: str = "override") -> tuple[str, Any]:
    """Read a word; its value is as a config file would have it, except that it has no comments.

    Args:
        word: such as `trainer.steps=50`.
        what: how messages call it.

    Raises:
        ConfigError: it is not of the form key=value, or its value is not YAML.

    >>> key_value("a.b=5e-6"), key_value("a=010"), key_value("a=no"), key_value("a=1_000")
    (('a.b', 5e-06), ('a', 10), ('a', 'no'), ('a', '1_000'))
    >>> key_value("a=runs/try #2"), key_value("a=[a, 'b #c']")
    (('a', 'runs/try #2'), ('a', ['a', 'b #c']))
    """
    key, equals, text = word.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"The {what} {brief(word)} is not of the form key=value.", page="configs")
    if re.search(r"(^|\s)#", text) and not text.lstrip().startswith(("'", '"', "[", "{", "|", ">", "!", "&")):
        text = f"""'{text.strip().replace("'", "''")}'"""
    try:
        return key, read_yaml(text, f"The {what} {brief(word)}")[0]
    except ConfigError as error:
        remedy = "Put quotes round a text with brackets, braces or a colon."
        raise ConfigError(f"{error} {remedy}", page="configs") from error


def parse_parameters(words: Sequence[str]) -> dict[str, Any]:
    """Words of a command line -> parameters of a component.

    Raises:
        ConfigError: as `key_value`.
    """
    return dict(key_value(word, what="parameter") for word in words)


def apply(data: dict[str, Any], override: str, source: KeyPlaces) -> None:
    """Set one key of `data`, and note in `source` that the override set it.

    Args:
        data: the config, changed in place; missing groups are created.
        override: such as `trainer.steps=50` or `rewards.0.weight=1`; the value is YAML.
        source: the places of the config's keys.

    Raises:
        ConfigError: as `key_value`, or the key leads into a single value or past the end of a list.
    """
    key, value = key_value(override)
    parts = key.split(".")
    path: list[str | int] = []
    here: Any = data
    for i, part in enumerate(parts):
        if isinstance(here, list) and part in map(str, range(len(here))):
            path.append(int(part))
        elif isinstance(here, dict):
            path.append(part)
        else:
            kind = "a single value, not a group of keys"
            if isinstance(here, list):
                kind = f"a list of {len(here)}, whose entries are numbered from 0; got {brief(part)}"
            group = ".".join(parts[:i])
            raise ConfigError(f"The override {brief(override)}: {group} is {kind}.", page="configs")
        if i == len(parts) - 1:
            here[path[-1]] = value
        elif isinstance(here, dict) and here.get(part) is None:  # missing, or nothing follows its colon
            here[part] = {}
        here = here[path[-1]]
    source.override(tuple(path), override)
