"""The rating in a judge's answer: a JSON object that has it, or what a pattern finds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, TypeAlias

from grpokit import UsageError
from grpokit.builtin.numerals import number

Reader: TypeAlias = Callable[[str], Fraction | None]
"""From an answer to the rating as it stands there; None if there is none."""

_THINKS, _HAS_THOUGHT = (re.compile(rf"<{slash}think(?:ing)?>", re.IGNORECASE) for slash in ("", "/"))
_OUT_OF = re.compile(r"/|out of", re.IGNORECASE)


def reader(*, key: str, pattern: str | None, high: float) -> Reader:
    """What reads the ratings: `pattern` where it is given, else the JSON object with `key`; the last one counts.

    A judge that reasons first may name other numbers on its way, so that the last one is its rating; what it thinks
    between `<think>` and `</think>`, or has not finished to think, is none.

    Args:
        key: of the JSON object.
        pattern: a regular expression whose only group is the number.
        high: the highest rating: a number out of another one, such as "4/5" where it is 10, is no rating.

    Raises:
        UsageError: the pattern is no regular expression with one group.
    """
    if pattern is None:
        return lambda answer: _last(_number(found[key], high) for found in _objects(_said(answer)) if key in found)
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"vlm-judge: the pattern {pattern!r} is no regular expression: {error}.") from error
    if compiled.groups != 1:
        raise UsageError(
            f"vlm-judge: expected a pattern with one group, the number, such as 'Score: ([0-9.]+)'; got {pattern!r} "
            f"with {compiled.groups}."
        )
    return lambda answer: _last(_number(match[1], high) for match in compiled.finditer(_said(answer)))


def scaled(rating: Fraction | float | None, low: float, high: float) -> float | None:
    """A rating in [low, high] -> [0, 1]; None for one that is not there or not in the range.

    >>> scaled(7.5, 0, 10), scaled(1, 1, 5), scaled(11, 0, 10)
    (0.75, 0.0, None)
    """
    return None if rating is None or not low <= rating <= high else (rating - low) / (high - low)


def _said(answer: str) -> str:
    """What stands behind the last thought, up to one that is not finished."""
    return _THINKS.split(_HAS_THOUGHT.split(answer)[-1])[0]


def _last(ratings: Iterator[Fraction | None]) -> Fraction | None:
    return next(reversed(list(ratings)), None)


def _number(value: Any, high: float) -> Fraction | None:
    """A number, also as text or with the highest rating, such as "7/10"; None for anything else, such as true."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    rating, *highest = map(number, _OUT_OF.split(str(value)))
    return rating if highest in ([], [high]) else None


def _objects(answer: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, in their order; those inside another count as part of it."""
    answer = answer[-100_000:]  # each bracket may cost a try, and the rating is at the end
    decoder, start = json.JSONDecoder(), answer.find("{")
    while start >= 0:
        try:
            found, end = decoder.raw_decode(answer, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield found
        start = answer.find("{", end)
