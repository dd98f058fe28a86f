"""Rewards on text, as plain functions: exact match, contains, format, numeric answer, length.

Each gives NaN where a sample's prompt has no target to compare with. A `pattern` is a regular expression (module
`re`, dot matches line breaks); where it has a group, the group is what counts.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence

from grpokit.errors import UsageError
from grpokit.types import Sample


def exact_match(samples: Sequence[Sample], *, pattern: str | None = None, ignore_case: bool = False) -> list[float]:
    """1 where the text equals the target (both stripped of outer white space), else 0.

    Args:
        samples: texts, each with a target text.
        pattern: compare only what this finds in the text; no match scores 0.
        ignore_case: compare case-folded.
    """

    def one(text: str, target: str) -> float:
        found = _extract(text, pattern)
        if found is None:
            return 0.0
        pair = (found.strip(), target.strip())
        return float(pair[0].casefold() == pair[1].casefold() if ignore_case else pair[0] == pair[1])

    return [_against_target(s, "exact-match", one) for s in samples]


def contains(samples: Sequence[Sample], *, ignore_case: bool = False) -> list[float]:
    """1 where the target stands somewhere in the text, else 0. Easily fooled by long texts: mix it with `length`."""

    def one(text: str, target: str) -> float:
        return float(target.casefold() in text.casefold() if ignore_case else target in text)

    return [_against_target(s, "contains", one) for s in samples]


def text_format(samples: Sequence[Sample], *, pattern: str) -> list[float]:
    """1 where the *whole* text matches `pattern`, else 0."""
    compiled = _compile(pattern)
    return [float(compiled.fullmatch(_text(s, "format")) is not None) for s in samples]


def numeric_answer(samples: Sequence[Sample], *, pattern: str | None = None, tolerance: float = 0.0) -> list[float]:
    """1 where the number that the text gives equals the target number, else 0.

    Args:
        samples: texts, each with a number (or its text) as target.
        pattern: where the number stands; by default the last number in the text. No match scores 0.
        tolerance: the largest absolute difference that still counts.
    """

    def one(text: str, target: str) -> float:
        wanted = _number(target)
        if wanted is None:
            raise UsageError(f"numeric-answer: the target {target!r} is not a number.")
        got = _number(_extract(text, pattern or r".*?([-+]?\d[\d,]*(?:\.\d+)?)(?!.*\d)"))
        return float(got is not None and abs(got - wanted) <= tolerance)

    return [_against_target(s, "numeric-answer", one) for s in samples]


def length(
    samples: Sequence[Sample], *, minimum: int = 0, maximum: int | None = None, scale: float = 1.0
) -> list[float]:
    """Minus `scale` times the number of characters by which a text is too short or too long; 0 inside the range."""
    longest = math.inf if maximum is None else maximum

    def one(n: int) -> float:
        return -scale * max(minimum - n, n - longest, 0)

    return [one(len(_text(s, "length"))) for s in samples]


def _text(sample: Sample, reward: str) -> str:
    if not isinstance(sample.output, str):
        raise UsageError(f"{reward} scores text, but the sample's output is a {type(sample.output).__name__}.")
    return sample.output


def _against_target(sample: Sample, reward: str, compare: Callable[[str, str], float]) -> float:
    text, target = _text(sample, reward), sample.prompt.target
    if target is None:
        return math.nan
    if not isinstance(target, (str, int, float)):
        raise UsageError(f"{reward} compares with a text, but the target is a {type(target).__name__}.")
    return compare(text, str(target))


@functools.lru_cache(maxsize=64)
def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise UsageError(f"The pattern {pattern!r} is not a regular expression: {error}.") from error


def _extract(text: str, pattern: str | None) -> str | None:
    if pattern is None:
        return text
    match = _compile(pattern).search(text)
    if match is None:
        return None
    return match.group(1) if match.re.groups else match.group(0)


def _number(text: str | None) -> float | None:
    try:
        number = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
