"""A few prompts for the tiny pipelines, which read them but cannot draw them."""

from __future__ import annotations

from collections.abc import Mapping

from grpokit import Prompt, UsageError

_SPLITS: Mapping[str, tuple[str, ...]] = {
    "train": (
        "a lamp on a table",
        "a blue gate",
        "three boats",
        "a bird in the rain",
        "a clock tower",
        "a woman with a book",
        "a basket of bread",
        "a forest at noon",
    ),
    "eval": ("a bridge in fog", "a white horse", "a shop window", "four chairs"),
}


def prompts(split: str = "train", limit: int | None = None) -> list[Prompt]:
    """The prompts of a split.

    Args:
        split: "train" or "eval".
        limit: only the first so many; None for all.
    """
    if split not in _SPLITS:
        raise UsageError(f"The prompts for tiny pipelines have the splits train and eval; got {split!r}.")
    return [Prompt(text=text) for text in _SPLITS[split][:limit]]
