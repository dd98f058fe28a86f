"""Prompts for toy-glyph in three splits that share no word.

`pretrain` holds made-up words of random letters (every letter equally often), which made the shipped start; `train`
holds English words for GRPO; `eval` holds English words that neither has seen: a rise on `eval` is writing that was
learned, not words that were remembered. All are pure functions of the word list, the same on every machine.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from grpokit import Prompt, UsageError
from grpokit.sampling import mix, permutation
from grpokit_toy.codebook import ALPHABET, target_image

WORDS_FILE = Path(__file__).parent / "assets" / "words.txt"
TEMPLATES = (
    'A sign that says "{}"',
    'The word "{}" on a cream card',
    'Write "{}" in navy letters',
    'A label with the text "{}"',
)
LENGTHS = (3, 4, 5)
EVAL_WORDS = 160
PRETRAIN_WORDS = 2000
SPLITS = ("train", "eval", "pretrain")


@lru_cache(maxsize=1)
def _splits() -> dict[str, list[str]]:
    english = sorted(WORDS_FILE.read_text(encoding="ascii").split())
    mixed = [english[i] for i in permutation(len(english), 1)]
    made_up = dict.fromkeys(_made_up(i) for i in range(PRETRAIN_WORDS))  # a word may come up twice
    return {
        "eval": mixed[:EVAL_WORDS],
        "train": mixed[EVAL_WORDS:],
        "pretrain": [word for word in made_up if word not in set(english)],
    }


def _made_up(index: int) -> str:
    length = LENGTHS[mix(2, index) % len(LENGTHS)]
    places = [mix(2, index, k) % len(ALPHABET) for k in range(length)]
    return "".join(ALPHABET[place] for place in places)


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
    prompts = []
    for i, word in enumerate(glyph_words(split)[:limit]):
        text = TEMPLATES[i % len(TEMPLATES)].format(word)
        prompts.append(Prompt(text=text, target=target_image(word), meta={"word": word}))
    return prompts
