"""The words of glm-glyph in three splits that share none.

`pretrain` holds made-up words of random letters, with which the shipped model was taught; `train` holds English words
for GRPO; `eval` holds English words that neither has seen: a rise on `eval` is writing that was learned, not words
that were remembered. All are pure functions of the word list, the same on every machine.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from grpokit import UsageError
from grpokit.sampling import mix, permutation

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LENGTHS = (3, 4, 5)  # letters of a word
SPLITS = ("train", "eval", "pretrain")
EVAL_WORDS = 160
PRETRAIN_WORDS = 12_000


def words(split: str = "train") -> list[str]:
    """The words of a split, in capitals, in a fixed mixed order.

    Raises:
        UsageError: there is no such split.
    """
    if split not in SPLITS:
        raise UsageError(f"glm-glyph has the splits {', '.join(SPLITS)}; got {split!r}.")
    english = _english()
    if split == "pretrain":
        made_up = dict.fromkeys(_made_up(index) for index in range(PRETRAIN_WORDS))  # a word may come up twice
        return [word for word in made_up if word not in set(english)]
    return english[:EVAL_WORDS] if split == "eval" else english[EVAL_WORDS:]


@lru_cache(maxsize=1)
def _english() -> list[str]:
    listed = sorted((Path(__file__).parent / "words.txt").read_text(encoding="ascii").split())
    return [listed[index] for index in permutation(len(listed), 1)]


def _made_up(index: int) -> str:
    length = LENGTHS[mix(2, index) % len(LENGTHS)]
    return "".join(ALPHABET[mix(2, index, place) % len(ALPHABET)] for place in range(length))
