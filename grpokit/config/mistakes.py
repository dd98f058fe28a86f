"""Messages about mistakes in a config: the place, what was expected, the actual value, and the key that was meant."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from grpokit.config.synonyms import ADVICE, KEYS
from grpokit.config.yaml_source import Path, Source, write_inline
from grpokit.errors import nearest, shown

TWO_SOURCES = "two_sources"
"""The kind of the mistake that `data` names no source of prompts, or several."""

_BRANCHES = ("str", "constrained-str", "Component")  # a component is a name or a group of keys
_EXPECTED = {  # pydantic's kinds of mistake, in our words; its own words for any other
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "a group of keys",
    "model_type": "a group of keys",
    "too_short": "a list of at least {min_length}",
    "string_too_short": "a text that is not empty",
    "string_too_long": "at most {max_length} characters",
    "string_unicode": "a text without half a surrogate pair",
    "literal_error": "{expected}",
    "greater_than": "more than {gt:,}",
    "greater_than_equal": "at least {ge:,}",
    "less_than": "less than {lt:,}",
    "less_than_equal": "at most {le:,}",
    "invalid_key": "a text as key",
}


def explain(error: ValidationError, source: Source, model: type[BaseModel]) -> str:
    """All mistakes of a config, one a line.

    Args:
        error: the mistakes that validation found.
        source: the places of the config's keys.
        model: the model of the whole config.
    """
    lines = []
    for issue in error.errors():
        value = issue["input"]
        branch = next((i for i, p in enumerate(issue["loc"]) if i >= 2 and p in _BRANCHES), None)
        text = branch is not None and issue["loc"][branch] != "Component"
        if (text and isinstance(value, dict)) or (branch is not None and issue["type"] == "model_type"):
            continue  # a name or a group of keys would do: only the mistakes of the nearer one are listed
        path = tuple(p for i, p in enumerate(issue["loc"]) if i != branch and p != "[key]")
        place, key = source.place(path), ".".join(map(str, path))
        if issue["type"] == "extra_forbidden":
            known = _beside(path, model)
            lines.append(f"{place}: unknown key '{key}'{_meant(path, model)}. Known keys: {', '.join(known)}.")
        elif issue["type"] == "missing":
            lines.append(f"{place}: the key '{key}' is missing.")
        elif issue["type"] in ("value_error", TWO_SOURCES):  # keys of one group that do not go together
            what = str(issue["ctx"]["error"]) if issue["type"] == "value_error" else issue["msg"]
            below = source.overrides_below(path)
            sources = issue.get("ctx", {}).get("sources", "none")  # of several sources, the others have no part
            clashing = what if sources == "none" else sources
            involved = _involved(source, path, clashing)
            remedy = _replacement(path, value, below) if issue["type"] == TWO_SOURCES and involved else ""
            lines.append(f"{where(source, path, clashing)}: {key or 'config'}: {what}.{remedy}")
        else:
            words = _EXPECTED.get(issue["type"])
            context = {k: int(v) if isinstance(v, float) else v for k, v in issue.get("ctx", {}).items()}  # 0, not 0.0
            expected = f"expected {words.format(**context)}" if words else issue["msg"][0].lower() + issue["msg"][1:]
            remedy = "" if text else _remedy(issue["type"], key, value, context)
            expected += " or keys with `use`" * text
            lines.append(f"{place}: {key}: {expected}, got {shown(value)}{remedy}.")
    return "\n".join(dict.fromkeys(lines))


def where(source: Source, path: Path, message: str) -> str:
    """The place of a group, with the overrides inside it that a mistake comes from: those whose key `message` names."""
    overrides = [f"override {shown(text)}" for text in _involved(source, path, message)]
    return ", with ".join(dict.fromkeys([source.place(path), *overrides]))


def key_for(name: str, model: type[BaseModel]) -> str:
    """A hint at the key that somebody means by `name`: `" (did you mean 'trainer.learning_rate'?)"`, or an empty text.

    Args:
        name: a key without its group, or the name of a command's option without its dashes.
        model: the model of the whole config.
    """
    name = name.lower().replace("-", "_")
    if name in ADVICE:
        return f" ({ADVICE[name]})"
    homes = [f"{group}.{name}" for group, fields in groups(model).items() if name in fields and name != "use"]
    keys = KEYS.get(name) or homes or [key for key in model.model_fields if key == name]
    return f" (did you mean {' or '.join(map(repr, keys))}?)" if keys else ""


def groups(model: type[BaseModel]) -> dict[str | int, list[str]]:
    """Group -> its keys, for each part of a config that is a group with fixed keys."""
    annotations = {name: field.annotation for name, field in model.model_fields.items()}
    return {
        name: list(kind.model_fields)
        for name, kind in annotations.items()
        if isinstance(kind, type) and issubclass(kind, BaseModel)
    }


def _beside(path: Path, model: type[BaseModel]) -> list[str]:
    """The keys of the group that a key stands in."""
    for part in path[:-1]:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[str(part)].annotation
        kinds = (annotation, *get_args(annotation))
        model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return list(model.model_fields)


def _meant(path: Path, model: type[BaseModel]) -> str:
    """A hint about an unknown key: another library's name, a key of another group, or the nearest of all."""
    name, known = str(path[-1]), groups(model)
    here = _beside(path, model)
    elsewhere = {key: f"{group}.{key}" for group, keys in known.items() for key in keys}
    hint = key_for(name, model) or nearest(name, here)
    if hint or len(path) > 1:
        return hint
    hint = nearest(name, elsewhere)
    return next((hint.replace(key, full) for key, full in elsewhere.items() if f"'{key}'" in hint), "")


def _involved(source: Source, path: Path, message: str) -> list[str]:
    below = source.overrides_below(path)
    return [text for key, text in below.items() if _names_one(message, key[len(path) :])]


def _names_one(message: str, keys: Path) -> bool:
    """Whether the message about a clash names one of the keys; each such message names all that take part."""
    return any(re.search(rf"\b{re.escape(key)}\b", message) for key in keys if isinstance(key, str))


def _replacement(path: Path, group: Any, below: Mapping[Path, str]) -> str:
    """How to replace a whole group, for somebody who has overridden single keys of it."""
    values: dict[str, Any] = {}
    for key in below:
        here, there = group, values
        for part in key[len(path) : -1]:
            here, there = here[part], there.setdefault(str(part), {})
        there[str(key[-1])] = here[key[-1]]
    word = shlex.quote(f"{'.'.join(map(str, path))}={write_inline(values)}")
    return f" An override changes single keys. To replace them all, write {word}."


def _remedy(kind: str, key: str, value: Any, context: Mapping[str, Any]) -> str:
    """What to do about a mistake, if the expected value alone does not say it."""
    if kind in ("int_type", "float_type") and isinstance(value, str) and any(c.isdigit() for c in value):
        return " (a text: write numbers as 10, 1.5 or 5e-6, without quotes, units or underscores)"
    if kind == "string_type" and isinstance(value, (int, float)):
        return " (put it in quotes)"
    if kind == "model_type" and key in ("trainer.correction", "trainer.entropy"):
        return " (as in {how: mask})" if key == "trainer.correction" else " (as in {target: 1})"
    if kind == "model_type" and isinstance(value, str) and len(value) <= 80:
        return f" (a component is named by `use`: {{use: {value}}})" if key != "data" else " (as in {prompts: ...})"
    if kind == "list_type" and key == "rewards":
        return " (as in [{use: my-reward}, {use: length}])"
    if kind == "literal_error" and isinstance(value, str):
        return nearest(value, [name.strip("'") for name in context["expected"].replace(" or ", ", ").split(", ")])
    return ""
