"""What a prompt lacks for a reward: functions for `RewardSpec.unscorable`, which a run asks before it begins."""

from __future__ import annotations

from collections.abc import Sequence

from grpokit.errors import shown
from grpokit.types import Prompt


def text_target(prompt: Prompt) -> str:
    """Why a reward that compares with a text or a number cannot score a prompt; empty if it can."""
    if prompt.target is None:
        return lacking("target", [prompt])
    return "its target is a picture; expected a text" if hasattr(prompt.target, "getbands") else ""


def picture_target(prompt: Prompt) -> str:
    """Why a reward that compares with a picture cannot score a prompt; empty if it can."""
    if prompt.target is None:
        return lacking("target", [prompt])
    return "" if hasattr(prompt.target, "getbands") else f"its target is {shown(prompt.target)}; expected a picture"


def source(prompt: Prompt) -> str:
    """Why a reward that looks at the source picture cannot score a prompt; empty if it can."""
    return "" if prompt.images else lacking("image", [prompt])


def lacking(role: str, prompts: Sequence[Prompt]) -> str:
    """That prompts have no target or source picture, and which of their other columns may be meant.

    >>> lacking("target", [Prompt(text="7 + 5", meta={"answer": "12"})])
    'there is no target; if it is in the column answer, write data.columns.target=answer'
    """
    what = f"there is no {'target' if role == 'target' else 'source picture'}"
    others = list(dict.fromkeys(name for prompt in prompts for name in prompt.meta if name != "messages"))
    if not others:
        return what
    return f"{what}; if it is in the column {' or '.join(others[:5])}, write data.columns.{role}={others[0]}"
