"""Messages about mistakes in a config: the place, what was expected, the actual value, and the key that was meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from grpokit.config.synonyms import ADVICE, KEYS
from grpokit.config.yaml_source import KeyPath, KeyPlaces
from grpokit.errors import brief, nearest
from grpokit.files import PLAIN_NAME

_BRANCHES = ("str", "constrained-str", "Component")  # a component is a name or a group of keys
_EXPECTED = {  # pydantic's kinds of mistake, in our words
    "bool_type": "true or false",
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
    "string_unicode": "a text without an unpaired surrogate",
    "literal_error": "{expected}",
    "greater_than": "more than {gt:,}",
    "greater_than_equal": "at least {ge:,}",
    "less_than": "less than {lt:,}",
    "less_than_equal": "at most {le:,}",
    "invalid_key": "a text as the key",
    "string_pattern_mismatch": PLAIN_NAME,
}
_EXAMPLES = {
    "data": "{prompts: ...}",
    "rewards": "[{use: my-reward}, {use: length}]",
    "trackers.use": "[wandb]",
    "trainer.correction": "{how: mask}",
    "trainer.modifiers": "[{use: entropy-target, target: 1}]",
}


def explain(error: ValidationError, source: KeyPlaces, model: type[BaseModel]) -> str:
    """All mistakes of a config, one a line.

    Args:
        error: the mistakes that validation found.
        source: the places of the config's keys.
        model: the model of the whole config.
    """
    lines = []
    for issue in error.errors():
        kind, value = issue["type"], issue["input"]
        loc = issue["loc"]
        branch = next((i for i, part in enumerate(loc) if i >= 2 and part in _BRANCHES), None)
        text = branch is not None and loc[branch] != "Component"
        if (text and isinstance(value, dict)) or (branch is not None and kind == "model_type"):
            continue  # a name or a group of keys would do: only the mistakes of the nearer one are listed
        path = tuple(part for i, part in enumerate(loc) if i != branch and part != "[key]")
        key = ".".join(map(str, path))
        if kind == "extra_forbidden":
            known = _beside(path, model)
            hint = key_for(str(path[-1]), model) or nearest(str(path[-1]), known)
            what = f"unknown key '{key}'{hint}. Known keys: {', '.join(known)}"
        elif kind == "missing":
            what = f"the key '{key}' is missing"
        elif kind == "value_error":  # keys of one group that do not go together
            what = f"{key or 'config'}: {issue['ctx']['error']}"
        else:
            context = {k: int(v) if isinstance(v, float) else v for k, v in issue.get("ctx", {}).items()}  # 0, not 0.0
            own = f"expected {_EXPECTED.get(kind, 'another value')}".format(**context)
            remedy = "" if text else _remedy(kind, key, value, context)
            what = f"{key}: {own}{' or keys with `use`' * text}, got {brief(value)}{remedy}"
        lines.append(f"{source.place(path)}: {what}.")
    return "\n".join(dict.fromkeys(lines))


def key_for(name: str, model: type[BaseModel]) -> str:
    """A hint at the key that someone means by `name`: `" (did you mean 'trainer.learning_rate'?)"`, or an empty text.

    Args:
        name: a key without its group, or the name of a command's option without its dashes.
        model: the model of the whole config.
    """
    name = name.lower().replace("-", "_")
    if name in ADVICE:
        return f" ({ADVICE[name]})"
    homes = [
        f"{group}.{name}"
        for group, field in model.model_fields.items()
        if name in getattr(field.annotation, "model_fields", ()) and name != "use"
    ]
    keys = KEYS.get(name) or homes or [key for key in model.model_fields if key == name]
    return f" (did you mean {' or '.join(map(repr, keys))}?)" if keys else ""


def _beside(path: KeyPath, model: type[BaseModel]) -> list[str]:
    """The keys of the group that a key is in."""
    for part in path[:-1]:
        if isinstance(part, str):
            annotation = model.model_fields[part].annotation
            model = next(kind for kind in (annotation, *get_args(annotation)) if hasattr(kind, "model_fields"))
    return list(model.model_fields)


def _remedy(kind: str, key: str, value: Any, context: Mapping[str, Any]) -> str:
    """What to do about a mistake, if the expected value alone does not say it."""
    if kind in ("int_type", "float_type") and isinstance(value, str) and any(c.isdigit() for c in value):
        return " (a text: write numbers as 10, 1.5 or 5e-6, without quotes, units or underscores)"
    if kind == "string_type" and isinstance(value, (int, float)):
        return " (put it in quotes)"
    if kind in ("model_type", "list_type") and key in _EXAMPLES:
        return f" (as in {_EXAMPLES[key]})"
    if kind == "model_type" and isinstance(value, str) and len(value) <= 80:
        return f" (a component is named by `use`: {{use: {value}}})"
    if kind == "literal_error" and isinstance(value, str):
        names = context["expected"].replace(" or ", ", ").split(", ")
        return nearest(value, [name.strip("'") for name in names])
    return ""
