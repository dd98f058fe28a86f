"""Which column of a row is the prompt, which its target, and which its source pictures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from grpokit.errors import DataError, brief, nearest
from grpokit.images import PICTURES
from grpokit.types import Prompt

ColumnNames = Mapping[str, str | None]
"""Role -> column; None for a role that no column has."""
Roles = Mapping[str, Sequence[str]]
"""Role -> columns, of which one has it in each row."""

_ENDINGS = [ending.removeprefix(".") for ending in PICTURES]
_USUAL = {
    "prompt": ("prompt", "text", "caption", "txt", "conversations"),
    "target": ("target",),
    "image": ("image", "images", "source", "file_name", *_ENDINGS),
}
_OF_SHAREGPT = """Make a question and its answer of each:
  import json
  rows = json.load(open("sharegpt.json"))  # of JSON lines: map(json.loads, open("sharegpt.jsonl"))
  pairs = [row["conversations"][-2:] for row in rows]
  json.dump([{"prompt": p["value"], "target": t["value"]} for p, t in pairs], open("prompts.json", "w"))"""


def assign_roles(
    names: Collection[str], columns: ColumnNames | None, *, where: str, pictured: Collection[str]
) -> Roles:
    """The columns of each role: as `columns` says, else by its usual names, unless a column has another role.

    Args:
        names: of all columns, and of what they hold (see `nested_columns`).
        columns: what the user says.
        where: names the file or dataset in messages.
        pictured: those that hold pictures.

    Raises:
        DataError: a role or column does not exist, no column is the prompt, or one picture would be source and target.
    """
    columns = columns or {}
    there = f"it has: {brief(', '.join(names), most=200)[1:-1] or 'none'}"
    for role, column in columns.items():
        if role not in _USUAL:
            raise DataError(f"`columns` maps prompt, target and image, not {brief(role)}.")
        if column is not None and column not in names:
            raise DataError(
                f"{where} has no column '{column}' for the {role}{nearest(column, names)}; {there}. Name the right one "
                f"with `columns: {{{role}: ...}}`, or write null."
            )
    free = [name for name in names if name == "prompt" or name not in columns.values()]
    roles = {}
    for role, usual in _USUAL.items():
        roles[role] = [name for name in usual if name in free]
        if role in columns:
            column = columns[role]
            roles[role] = [] if column is None else [column]
    if "image" not in columns:
        roles["image"] = [name for name in roles["image"] if name in ("image", "images", *pictured)]
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


def nested_columns(row: Mapping[str, Any]) -> list[str]:
    """The names of a row's columns, and with dots those of what they hold.

    >>> nested_columns({"id": 7, "reward_model": {"ground_truth": "12"}})
    ['id', 'reward_model', 'reward_model.ground_truth']
    """
    names = list(row)
    for name in names:  # which grows
        content = cell(row, name)
        if isinstance(content, Mapping):
            names += [f"{name}.{inner}" for inner in content]
    return names


def cell(row: Mapping[str, Any], column: str) -> Any:
    """What a row has in a column, whose name may have dots as in `nested_columns`; None where it has no such column."""
    while column not in row:
        name, _, column = column.partition(".")
        row = row.get(name, {})
        if not isinstance(row, Mapping) or not column:
            return None
    return row[column]


def prompt_of(row: Mapping[str, Any], roles: Roles, *, where: str, stored: Callable[[Any, str], Any]) -> Prompt:
    """The prompt in a row; a conversation becomes its last user's text and `messages` in meta.

    Args:
        row: its columns.
        roles: of the columns.
        where: names the row in messages.
        stored: (value, role) -> a source picture or a target as the prompt holds it.

    Raises:
        DataError: there is no text and no conversation with a user's text, or two columns have source pictures.
    """
    images = {name: cell(row, name) for name in roles["image"]}
    images = {name: image for name, image in images.items() if image is not None}
    if len(images) > 1:
        raise DataError(
            f"{where} has both {' and '.join(images)}. Name the source pictures with `columns: {{image: ...}}`, or put "
            "all into images."
        )
    taken = {name for role in roles.values() for name in role}
    meta = {name: value for name, value in row.items() if name not in taken}
    text = value = cell(row, roles["prompt"][0])
    if isinstance(value, list):
        text = _last_question(value)
        meta["messages"] = value
        if any({"from", "value"} <= one.keys() for one in value if isinstance(one, dict)):
            raise DataError(f"{where} has ShareGPT's messages with `from` and `value`. {_OF_SHAREGPT}")
    if not isinstance(text, str):
        raise DataError(
            f"{where} has the prompt {brief(value)}; expected a text, or messages that include a user's. Name "
            "another column with `columns: {prompt: ...}`."
        )
    target = next((cell(row, name) for name in roles["target"]), None)
    source: Any = next(iter(images.values()), [])
    sources = source if isinstance(source, list) else [source]
    return Prompt(
        text=text,
        images=[stored(image, "source") for image in sources],
        target=stored(target, "target"),
        meta=meta,
    )


def _last_question(messages: Sequence[Any]) -> str | None:
    """The text of a conversation's last user, whose message may be a list of parts; None where there is none."""
    turns = [turn for turn in messages if isinstance(turn, dict)]
    asked = [turn.get("content") for turn in turns if turn.get("role") == "user"]
    if not asked:
        return None
    last = asked[-1]
    parts = last if isinstance(last, list) else [{"text": last}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return " ".join(text for text in texts if isinstance(text, str))
