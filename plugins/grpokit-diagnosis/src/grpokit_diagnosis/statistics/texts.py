"""Statistics of texts. Each is a reward: B samples -> B numbers, NaN for what is not a text or has nothing to count."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable

from grpokit_diagnosis.statistics.one_by_one import Reward, one_by_one

_PIECE = 4  # characters


def of_texts(measure: Callable[[str], float]) -> Reward:
    """A reward from a number of one text."""

    def one(output: object) -> float:
        return float(measure(output)) if isinstance(output, str) else math.nan

    return one_by_one(one, like=measure)


@of_texts
def text_length(text: str) -> float:
    """The length of a text in characters."""
    return len(text)


@of_texts
def word_count(text: str) -> float:
    """The length of a text in words, which white space separates."""
    return len(text.split())


@of_texts
def repetition(text: str) -> float:
    """The share of a text's pieces of 4 characters that stand in it before as well, 0 to 1.

    NaN for a text of fewer than 4 characters.
    """
    pieces = [text[start : start + _PIECE] for start in range(len(text) - _PIECE + 1)]
    return 1 - len({*pieces}) / len(pieces) if pieces else math.nan


@of_texts
def distinct_words(text: str) -> float:
    """The share of a text's words that are different, 0 to 1, whatever their case.

    It falls as texts get longer. NaN without words.
    """
    words = text.casefold().split()
    return len({*words}) / len(words) if words else math.nan


@of_texts
def digits(text: str) -> float:
    """The share of a text's characters that are digits; white space does not count.

    NaN for a text without any.
    """
    return _share(map(str.isdigit, _visible(text)))


@of_texts
def punctuation(text: str) -> float:
    """The share of a text's characters that are punctuation or symbols; white space does not count.

    NaN for a text without any.
    """
    return _share(unicodedata.category(character)[0] in "PS" for character in _visible(text))


@of_texts
def capitals(text: str) -> float:
    """The share of a text's letters that are capitals, among those that have a case.

    NaN for a text without any.
    """
    cased = [character for character in text if character.lower() != character.upper()]
    return _share(map(str.isupper, cased))


@of_texts
def latin_letters(text: str) -> float:
    """The share of a text's letters that are Latin: 1 for English, 0 for Chinese or Russian.

    NaN for a text without letters.
    """
    letters = filter(str.isalpha, text)
    return _share("LATIN" in unicodedata.name(letter, "") for letter in letters)


def _visible(text: str) -> str:
    """A text without white space."""
    return "".join(text.split())


def _share(answers: Iterable[bool]) -> float:
    """The share that is true; NaN of nothing."""
    counted = list(answers)
    return sum(counted) / len(counted) if counted else math.nan
