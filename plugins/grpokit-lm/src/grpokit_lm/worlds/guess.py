"""Guess the number: the model guesses, the world says "higher" or "lower", and few guesses are allowed.

It is the job of `lm-guess`. Who halves what is left needs at most five guesses for 16 numbers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from grpokit import Prompt
from grpokit_lm.tasks.splits import split_of

SIZES = {"eval": 200, "pretrain": 220}  # of the 666 ranges; the rest is `train`
_GUESS = re.compile(r"\s*([0-9]{1,9})\s*")  # not \d, which has the digits of all scripts


def question(low: int, high: int) -> str:
    """How the world begins."""
    return f"Guess my number from {low} to {high}."


class GuessTheNumber:
    """The world of one game.

    The number lies in the range that the prompt's `low` and `high` say, from 10 to 25 where it has none. The return is
    1 for the number at the first guess, less by 1 / `guesses` for each further one, and 0 where it was not found.

    Args:
        guesses: how many are allowed; anything but a whole number is one, too.
    """

    def __init__(self, *, guesses: int = 5) -> None:
        self.left, self.most = guesses, guesses
        self.number, self.found = 0, False

    def start(self, prompt: Prompt, seed: int) -> str:
        """Choose the number, by the seed alone."""
        low, high = int(prompt.meta.get("low", 10)), int(prompt.meta.get("high", 25))
        self.number = random.Random(seed).randint(low, high)
        return question(low, high)

    def reply(self, text: str) -> str | None:
        """Say where the number is; None after the right guess or the last one."""
        self.left -= 1
        guess = _GUESS.fullmatch(text)
        self.found = guess is not None and int(guess[1]) == self.number
        if self.found or not self.left:
            return None
        if guess is None:
            return "a number"
        return "higher" if int(guess[1]) < self.number else "lower"

    def facts(self) -> Mapping[str, Any]:
        """`return`, `success`, and how many `guesses` it took."""
        used = self.most - self.left
        return {"return": (self.left + 1) / self.most if self.found else 0.0, "success": self.found, "guesses": used}


def ranges(split: str = "train") -> list[tuple[int, int]]:
    """The ranges of a split ("train", "eval" or "pretrain"), of 8 to 16 numbers below 100; the splits share none."""
    every = [(low, low + count - 1) for low in range(10, 84) for count in range(8, 17)]
    return split_of(every, split, sizes=SIZES, seed=3)


def prompts(split: str = "train", limit: int | None = None) -> list[Prompt]:
    """The prompts of a split.

    Args:
        split: "train", "eval" or "pretrain".
        limit: only the first so many; None for all.
    """
    return [
        Prompt(text=question(*each), meta=dict(zip(("low", "high"), each, strict=True)))
        for each in ranges(split)[:limit]
    ]
