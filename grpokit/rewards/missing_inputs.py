"""What a prompt lacks for a reward: functions for `RewardSpec.unscorable`, which a run asks before it begins.

A prompt that lacks something is not scored. A wrong target is an error, as in the reward itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpokit.errors import DataError, a_type, brief
from grpokit.types import Prompt


def text_target(prompt: Prompt) -> str:
    """Why a reward that compares with a text or a number cannot score a prompt; empty if it can.

    Raises:
        DataError: the target is something else.
    """
    if prompt.target is None:
        return missing_role("target", [prompt])
    if not isinstance(prompt.target, (str, int, float)):
        raise DataError(f"its target is {a_type(prompt.target)}; expected a text or a number.")
    return ""


def any_target(prompt: Prompt) -> str:
    """As `text_target`, for a reward to which a blank target says nothing."""
    return text_target(prompt) or ("" if str(prompt.target).strip() else "its target is blank")


def picture_target(prompt: Prompt) -> str:
    """Why a reward that compares with a picture cannot score a prompt; empty if it can.

    Raises:
        DataError: the target is something else.
    """
    if prompt.target is None:
        sources = "; if it is the source picture, name that column, as in data.columns.target=image"
        return missing_role("target", [prompt]) + (sources if prompt.images else "")
    if not hasattr(prompt.target, "getbands"):
        raise DataError(f"its target is {brief(prompt.target)}; expected a picture.")
    return ""


def source(prompt: Prompt) -> str:
    """Why a reward that looks at the source picture cannot score a prompt; empty if it can."""
    return "" if prompt.images else missing_role("image", [prompt])


def missing_role(role: str, prompts: Sequence[Prompt]) -> str:
    """That prompts have no target or source picture, and which of their other columns may be meant.

    >>> missing_role("target", [Prompt(text="7 + 5", meta={"answer": "12"})])
    'there is no target; if it is in the column answer, write data.columns.target=answer'
    """
    what = f"there is no {'target' if role == 'target' else 'source picture'}"
    others = list(dict.fromkeys(name for prompt in prompts for name in _columns(prompt.meta)))
    if not others:
        return what
    return f"{what}; if it is in the column {' or '.join(others[:5])}, write data.columns.{role}={others[0]}"


def _columns(meta: Mapping[str, Any]) -> Iterator[str]:
    """The names of columns, of those that hold others the names of these."""
    for name, value in meta.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in value)
        elif name != "messages":
            yield name
