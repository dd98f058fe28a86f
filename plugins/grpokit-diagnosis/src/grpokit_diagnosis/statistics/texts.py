"""Statistics of texts. Each is a reward: B samples -> B numbers, NaN for what is not a text or has nothing to count."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from grpokit.types import Sample

_PIECE = 4  # characters


def text_length(samples: Sequence[Sample]) -> list[float]:
    """The length of each output in characters.

    Args:
        samples: B samples.

    Returns:
        B numbers; NaN for an output that is not a text.
    """
    return _each(samples, len)


def word_count(samples: Sequence[Sample]) -> list[float]:
    """The length of each output in words, which white space separates; arguments and results as of `text_length`."""
    return _each(samples, lambda text: len(text.split()))


def repetition(samples: Sequence[Sample]) -> list[float]:
    """The share of each output's pieces of 4 characters that stand in it before as well, 0 to 1.

    Arguments and results as of `text_length`; NaN for a text of fewer than 4 characters.
    """

    def one(text: str) -> float:
        pieces = [text[start : start + _PIECE] for start in range(len(text) - _PIECE + 1)]
        return 1 - len({*pieces}) / len(pieces) if pieces else math.nan

    return _each(samples, one)


def distinct_words(samples: Sequence[Sample]) -> list[float]:
    """The share of each output's words that are different, 0 to 1, whatever their case.

    It falls as texts get longer. Arguments and results as of `text_length`; NaN without words.
    """

    def one(text: str) -> float:
        lower = text.casefold().split()
        return len({*lower}) / len(lower) if lower else math.nan

    return _each(samples, one)


def digits(samples: Sequence[Sample]) -> list[float]:
    """The share of each output's characters that are digits; white space does not count.

    Arguments and results as of `text_length`; NaN for a text without any.
    """
    return _each(samples, lambda text: _share(map(str.isdigit, _visible(text))))


def punctuation(samples: Sequence[Sample]) -> list[float]:
    """The share of each output's characters that are punctuation or symbols; white space does not count.

    Arguments and results as of `text_length`; NaN for a text without any.
    """

    def is_sign(character: str) -> bool:
        return unicodedata.category(character)[0] in "PS"

    return _each(samples, lambda text: _share(map(is_sign, _visible(text))))


def capitals(samples: Sequence[Sample]) -> list[float]:
    """The share of each output's letters that are capitals, among those that have a case.

    Arguments and results as of `text_length`; NaN for a text without any.
    """

    def one(text: str) -> float:
        cased = [character for character in text if character.lower() != character.upper()]
        return _share(map(str.isupper, cased))

    return _each(samples, one)


def latin_letters(samples: Sequence[Sample]) -> list[float]:
    """The share of each output's letters that are Latin: 1 for English, 0 for Chinese or Russian.

    Arguments and results as of `text_length`; NaN for a text without letters.
    """

    def one(text: str) -> float:
        letters = filter(str.isalpha, text)
        return _share("LATIN" in unicodedata.name(letter, "") for letter in letters)

    return _each(samples, one)


def _each(samples: Sequence[Sample], measure: Callable[[str], float]) -> list[float]:
    """A number for each text; NaN for other outputs."""
    numbers = [math.nan] * len(samples)
    for row, sample in enumerate(samples):
        if isinstance(sample.output, str):
            numbers[row] = float(measure(sample.output))
    return numbers


def _visible(text: str) -> str:
    """A text without white space."""
    return "".join(text.split())


def _share(answers: Iterable[bool]) -> float:
    """The share that is true; NaN of nothing."""
    counted = list(answers)
    return sum(counted) / len(counted) if counted else math.nan
