"""A few prompts for the tiny GLM-Image, which reads them but cannot draw them."""

from __future__ import annotations

from PIL import Image

from grpokit import Prompt, UsageError

_TRAIN = (
    "a cat on a wall",
    "a red sign",
    "two dogs",
    "a boat on a lake",
    "a green door",
    "an old man with a hat",
    "a bowl of fruit",
    "a street at night",
)
_EVAL = ("a hill in the snow", "a yellow car", "a map of an island", "three birds")


def prompts(split: str = "train", limit: int | None = None) -> list[Prompt]:
    """The prompts of a split.

    Args:
        split: "train" or "eval".
        limit: only the first so many; None for all.
    """
    splits = {"train": _TRAIN, "eval": _EVAL}
    if split not in splits:
        raise UsageError(f"The prompts for the tiny GLM-Image have the splits train and eval; got {split!r}.")
    return [Prompt(text=text) for text in splits[split][:limit]]


def edits(split: str = "train", limit: int | None = None) -> list[Prompt]:
    """The same prompts, each with a plain picture of 64 x 64 pixels to edit."""
    texts = prompts(split, limit)
    return [Prompt(text=p.text, image=Image.new("RGB", (64, 64), (29 * i, 80, 160))) for i, p in enumerate(texts)]
