"""Prompts for environments, which need none: each stands for a start, whose state follows from its group's seed."""

from __future__ import annotations

from grpokit import Prompt, UsageError

_STARTS = {"train": ("start", 64), "eval": ("held-out start", 20)}


def starts(split: str = "train", limit: int | None = None) -> list[Prompt]:
    """Starts of episodes: 64 to train on and 20 to evaluate on, or the first `limit`; all meet seeds of their own."""
    if split not in _STARTS:
        raise UsageError(f"starts has the splits {', '.join(_STARTS)}; got {split!r}.")
    name, count = _STARTS[split]
    return [Prompt(text=f"{name} {number}") for number in range(1, count + 1)][:limit]
