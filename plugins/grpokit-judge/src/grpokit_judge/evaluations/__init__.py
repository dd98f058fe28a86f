"""The evaluation `checklist`: 20 prompts with questions about the picture, in the form of GenEval 2's file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grpokit import Prompt
from grpokit.data import read_prompts


def prompts(split: str = "train") -> Sequence[Prompt]:
    """The prompts, the same for every split, with their questions as `vqa_list` in their `meta`."""
    return read_prompts(Path(__file__).parent / "checklist.jsonl")
