"""Prompts for toy-glyph: short English words in three disjoint splits.

`pretrain` made the shipped start, `train` is for GRPO, `eval` is seen by neither: a rise on `eval` is writing that
was learned, not words that were remembered. The split is a fixed permutation of the word list, so it is the same on
every machine.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from grpokit import Prompt, UsageError
from grpokit.sampling import permutation
from grpokit_toy.codebook import target_image

WORDS_FILE = Path(__file__).parent / "assets" / "words.txt"
TEMPLATES = (
    'A sign that says "{}"',
    'The word "{}" on a cream card',
    'Write "{}" in navy letters',
    'A label with the text "{}"',
)
SIZES = {"eval": 160, "pretrain": 300}  # the rest is `train`
SPLITS = ("train", "eval", "pretrain")


@lru_cache(maxsize=1)
def _splits() -> dict[str, list[str]]:
    words = sorted(WORDS_FILE.read_text(encoding="ascii").split())
    mixed = [words[i] for i in permutation(len(words), 1)]
    first, second = SIZES["eval"], SIZES["eval"] + SIZES["pretrain"]
    return {"eval": mixed[:first], "pretrain": mixed[first:second], "train": mixed[second:]}


def glyph_words(split: str = "train") -> list[str]:
    """The words of a split, in capitals, in a fixed mixed order."""
    if split not in SPLITS:
        raise UsageError(f"toy-glyph has the splits {', '.join(SPLITS)}; got {split!r}.")
    return list(_splits()[split])


def glyph_prompts(split: str = "train", limit: int | None = None) -> list[Prompt]:
    """The prompts of a split, each with the picture that a perfect policy would draw.

    Args:
        split: "train", "eval" or "pretrain".
        limit: only the first so many; None for all.
    """
    return [
        Prompt(text=TEMPLATES[i % len(TEMPLATES)].format(word), target=target_image(word), meta={"word": word})
        for i, word in enumerate(glyph_words(split)[:limit])
    ]
