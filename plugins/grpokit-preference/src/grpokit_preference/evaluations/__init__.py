"""The evaluation `preference`: 20 prompts as people write them, by what they show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grpokit import Prompt
from grpokit.data import read_prompts


def prompts(split: str = "train") -> Sequence[Prompt]:
    """The prompts, the same for every split, with their `subject` in their `meta`."""
    return read_prompts(Path(__file__).parent / "preference.jsonl")
