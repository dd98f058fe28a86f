"""What a prompt lacks for `pyiqa`. A run asks before anything is built, and where pyiqa may be in a capsule alone."""

from __future__ import annotations

from grpokit import Prompt
from grpokit.rewards.missing_inputs import picture_target


def target(prompt: Prompt, *, metric: str = "") -> str:
    """Why a prompt cannot be scored: it has no target picture, and the metric compares with one."""
    try:
        from grpokit_pyiqa.scoring import needs_target
    except ModuleNotFoundError:
        return ""
    return picture_target(prompt) if needs_target(metric) else ""
