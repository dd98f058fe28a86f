"""The evaluation `text-rendering`: 40 prompts with text in quotes, English and Chinese, a word to several lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grpokit import Prompt
from grpokit.data import read_prompts


def prompts(split: str = "train") -> Sequence[Prompt]:
    """The prompts, the same for every split, with `language` and `length` in their `meta`."""
    return read_prompts(Path(__file__).parent / "text-rendering.jsonl")
