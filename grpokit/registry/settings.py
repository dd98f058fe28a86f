"""Settings that a config gives as a mapping, such as `lora: {r: 16}`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from grpokit.errors import UsageError, a_type
from grpokit.registry.synonyms import hint

S = TypeVar("S")


def read_settings(kind: type[S], given: Any, *, key: str, example: str) -> S:
    """Make a dataclass of settings from a mapping.

    Args:
        kind: the dataclass, which checks its values.
        given: field -> value.
        key: what the config calls it; messages begin with it.
        example: shown where something else than a mapping was given, or a key is missing.

    Raises:
        UsageError: a key is unknown or missing, or a value is out of bounds.
    """
    if not isinstance(given, Mapping):
        raise UsageError(f"{key} must be a mapping such as {example}, got {a_type(given)}.")
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise UsageError(f"{key} has no key '{name}'{hint(name, known, group=key)}. It has: {', '.join(known)}.")
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is parameter.empty and name not in given:
            raise UsageError(f"{key} needs the key '{name}', as in {example}.")
    try:
        return kind(**given)
    except UsageError as error:
        text = str(error)
        raise UsageError(text if text.startswith(key) else f"{key}: {text}") from error
