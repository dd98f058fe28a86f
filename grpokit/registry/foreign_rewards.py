"""Rewards written for TRL, Flow-GRPO or verifiers, which take columns: refused with the function that calls them."""

from __future__ import annotations

import inspect
from typing import Any

from grpokit.errors import PluginError

_VALUES = {
    "completion": "s.output",
    "completions": "s.output",
    "images": "s.output",
    "prompt": "s.prompt.text",
    "prompts": "s.prompt.text",
    "target": "s.prompt.target",
    "metadata": "s.prompt.meta",
}
"""Parameter -> what a sample has for it; every other is a column of the data."""

_NOT_OURS = {"completion_ids", "completions_ids", "environments", "log_extra", "log_metric", "parser", "state"}
_NOT_OURS |= {"prompt_ids", "trainer_state"}


def refuse_columns(reward: Any, what: str) -> None:
    """Refuse a reward that takes columns, with the function of samples that calls it, where one can.

    Args:
        reward: what would be called with samples.
        what: how the message calls it, such as "reward 'mine'".

    Raises:
        PluginError: it takes `completions`, `completion`, or `images` and `prompts`, and more.
    """
    try:
        given = inspect.signature(reward).parameters
    except (TypeError, ValueError):  # nothing to call, or compiled code
        return
    open_ended = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    columns = [name for name, p in given.items() if p.default is p.empty and p.kind not in open_ended]
    rest = any(p.kind is p.VAR_KEYWORD for p in given.values())
    foreign = {"completion", "completions"} & set(columns) or {"images", "prompts"} <= set(columns)
    if not foreign or len(columns) + rest < 2:
        return
    takes = ", ".join(map(str, given.values()))
    raise PluginError(
        f"The {what} takes columns ({takes}); expected a function of one list of samples. {_remedy(reward, columns)}",
        page="plugins",
    )


def _remedy(reward: Any, columns: list[str]) -> str:
    strange = sorted(_NOT_OURS & set(columns))
    if strange:
        return f"It needs {', '.join(strange)}, which no sample has: rewrite it without."
    if inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(type(reward).__call__):
        return "It is also async, and samples are scored without an event loop: rewrite it without async."
    name = getattr(reward, "__name__", "")
    if not name.isidentifier():
        return "Write a function of samples that calls this object, and name that one."
    return (
        f"Name this one instead:\n\ndef {name}_of_samples(samples):\n{_body(name, columns)}\n\n"
        "What data.columns names as target is s.prompt.target; other columns are in s.prompt.meta. For a sample that "
        "it cannot score, return NaN, not None. An output is a text or a picture: where the function expects "
        "messages, pass [{'role': 'assistant', 'content': s.output}]."
    )


def _body(name: str, columns: list[str]) -> str:
    values = {column: _VALUES.get(column, f"s.prompt.meta[{column!r}]") for column in columns}
    if {"completions", "images"} <= set(columns):  # what a vision language model is asked about
        values["images"] = "s.prompt.images"
    if "completion" in columns:
        arguments = ", ".join(f"{column}={value}" for column, value in values.items())
        return f"    return [{name}({arguments}) for s in samples]"
    arguments = ", ".join(f"{column}=[{value} for s in samples]" for column, value in values.items())
    if "completions" in columns:
        return f"    return {name}({arguments})"
    return f"    scores = {name}({arguments})\n    return scores[0] if isinstance(scores, tuple) else scores"
