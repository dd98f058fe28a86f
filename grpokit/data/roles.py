"""Which column of a row is the prompt, which its target, and which its source pictures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from grpokit.errors import DataError, nearest, shown
from grpokit.images import PICTURES

Columns = Mapping[str, str | None]
"""Role -> column; None for a role that no column has."""
Roles = Mapping[str, Sequence[str]]
"""Role -> columns, of which one has it in each row."""

_USUAL = {
    "prompt": ("prompt", "text", "caption", "txt"),
    "target": ("target",),
    "image": ("image", "images", "source", "file_name", *(ending[1:] for ending in PICTURES)),
}


def assigned(names: Collection[str], columns: Columns | None, *, where: str, pictured: Callable[[str], bool]) -> Roles:
    """The columns of each role: as `columns` says, else by its usual names, unless a column has another role.

    Args:
        names: of all columns.
        columns: what the user says.
        where: names the file or dataset in messages.
        pictured: whether a column holds pictures.

    Raises:
        DataError: a role or column does not exist, no column is the prompt, or one picture would be source and target.
    """
    columns = columns or {}
    there = f"it has: {shown(', '.join(names), most=200)[1:-1] or 'none'}"
    unknown = next((role for role in columns if role not in _USUAL), None)
    if unknown is not None:
        raise DataError(f"`columns` maps prompt, target and image, not {shown(unknown)}.")
    for role, column in columns.items():
        if column is not None and column not in names:
            raise DataError(
                f"{where} has no column '{column}' for the {role}{nearest(column, names)}; {there}. Name the right one "
                f"with `columns: {{{role}: ...}}`, or write null."
            )
    roles = {
        role: [name for name in usual if name in names and (name == "prompt" or name not in columns.values())]
        for role, usual in _USUAL.items()
    } | {role: [] if column is None else [column] for role, column in columns.items()}
    if "image" not in columns:
        roles["image"] = [name for name in roles["image"] if name in ("image", "images") or pictured(name)]
    if not roles["prompt"]:
        raise DataError(
            f"{where} has no column 'prompt'; {there}. Rename one, or say which it is with `columns: {{prompt: ...}}`."
        )
    if roles["image"] and roles["image"] == roles["target"]:
        raise DataError(
            f"`columns` makes '{roles['image'][0]}' the source picture and the target at once, so a copy would be "
            "perfect. Give one of the two another column, or null."
        )
    return roles | {"prompt": roles["prompt"][:1]}


def parts(row: Mapping[str, Any], roles: Roles, *, where: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Prompt, target, source pictures and meta of a row.

    Raises:
        DataError: two columns have source pictures, or there is no prompt.
    """
    if roles["prompt"][0] not in row:
        keys = shown(", ".join(row), most=200)[1:-1]
        raise DataError(f"{where}: the key '{roles['prompt'][0]}' is missing (keys: {keys or 'none'}).")
    images = {name: row[name] for name in roles["image"] if row.get(name) is not None}
    if len(images) > 1:
        raise DataError(
            f"{where} has both {' and '.join(images)}. Name the source pictures with `columns: {{image: ...}}`, or put "
            "all into images."
        )
    taken = {name for role in roles.values() for name in role}
    target = next((row.get(name) for name in roles["target"]), None)
    meta = {name: value for name, value in row.items() if name not in taken}
    return row[roles["prompt"][0]], target, next(iter(images.values()), None), meta


def read_prompt(value: Any, meta: Mapping[str, Any], *, where: str) -> tuple[str, dict[str, Any]]:
    """The text of a prompt and its meta; a conversation becomes its last user's text and `messages` in meta.

    Raises:
        DataError: it is neither a text nor a conversation with a user's text.
    """
    if isinstance(value, str):
        return value, dict(meta)
    if isinstance(value, list) and value and all(isinstance(one, dict) and "role" in one for one in value):
        asked = [_content(one.get("content")) for one in value if one["role"] == "user"]
        if asked:
            return asked[-1], {**meta, "messages": value}
    raise DataError(f"{where} has the prompt {shown(value)}; expected a text, or messages that include a user's.")


def _content(content: Any) -> str:
    """The text of a message, whose content may be a list of parts."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts: Sequence[Any] = [part.get("text") for part in parts if isinstance(part, dict)]
    return " ".join(text for text in texts if isinstance(text, str))
