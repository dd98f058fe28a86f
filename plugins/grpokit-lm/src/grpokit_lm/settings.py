"""Settings that a config gives as a mapping under one key, such as `lora: {r: 16}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from grpokit import UsageError
from grpokit.errors import a_type, nearest

S = TypeVar("S")


def read(kind: type[S], given: Any, *, key: str, example: str) -> S:
    """The settings of a mapping.

    Args:
        kind: a dataclass that checks its values.
        given: the mapping.
        key: where it stands, for messages.
        example: of the mapping, as a config writes it.

    Raises:
        UsageError: it is no mapping, a key is unknown, or a value is out of bounds.
    """
    if not isinstance(given, Mapping):
        raise UsageError(f"{key} must be a mapping such as {example}, got {a_type(given)}.")
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass, which no bound can say
    for name in given:
        if name not in known:
            raise UsageError(f"{key} has no key '{name}'{nearest(str(name), known)}. It has: {', '.join(known)}.")
    try:
        return kind(**given)
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from error
