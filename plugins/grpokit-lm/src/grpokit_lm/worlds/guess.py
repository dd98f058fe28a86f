"""Guess the number: the model guesses, the world says "higher" or "lower", and few guesses are allowed.

It is the job of `lm-guess`. Who halves what is left needs at most four guesses for nine numbers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from grpokit import Prompt, UsageError
from grpokit_lm.tasks.splits import split_of

SIZES = {"eval": 200, "pretrain": 200}  # of the 1,000 prompts; the rest is `train`
_GUESS = re.compile(r"\s*([0-9]{1,9})\s*")  # not \d, which has the digits of all scripts


class GuessTheNumber:
    """The world of one game.

    The return is 1 where the number was found, and 0 where it was not. It does not fall with each guess: then all that
    a model does in late turns would seem bad beside a game of its group that was short by luck.

    Args:
        low: the lowest number that it may be.
        high: the highest one.
        guesses: how many are allowed; anything but a whole number is one, too.
    """

    def __init__(self, *, low: int = 1, high: int = 9, guesses: int = 4) -> None:
        if low > high or guesses < 1:
            raise UsageError(f"low must not be above high, and guesses at least 1; got {low}, {high} and {guesses}.")
        self.low, self.high = low, high
        self.left, self.most = guesses, guesses
        self.number, self.found = low, False

    def start(self, prompt: Prompt, seed: int) -> str:
        """Choose the number, by the seed alone, and say behind the prompt what is to be guessed."""
        self.number = random.Random(seed).randint(self.low, self.high)
        return f"{prompt.text} Guess my number from {self.low} to {self.high}."

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
        return {"return": float(self.found), "success": self.found, "guesses": self.most - self.left}


def games(split: str = "train") -> list[str]:
    """The texts of a split ("train", "eval" or "pretrain"), as in "Game 17."; the splits share none."""
    return split_of([f"Game {number}." for number in range(1000)], split, sizes=SIZES, seed=3)


def prompts(split: str = "train", limit: int | None = None) -> list[Prompt]:
    """The prompts of a split. The seed of a group, not the prompt, decides which number it is.

    Args:
        split: "train", "eval" or "pretrain".
        limit: only the first so many; None for all.
    """
    return [Prompt(text=text) for text in games(split)[:limit]]
