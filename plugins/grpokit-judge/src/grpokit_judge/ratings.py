"""The rating in a judge's answer: a JSON object that has it, or what a pattern finds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from grpokit import UsageError

Reader: TypeAlias = Callable[[str, bool], float | None]
"""From an answer, and whether it was cut at its end, to the rating as it stands there; None if there is none."""

_NUMBER = re.compile(
    r"""\s* ( [-+]? (?: \d+ (?: \.\d* )? | \.\d+ ) (?: e [-+]? \d+ )? )
        (?: \s* (?: / | out\ of ) \s* ( \d+ (?: \.\d+ )? ) )? \.? \s*  # the highest rating; the end of a sentence""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)


def reader(*, key: str, pattern: str | None, high: float) -> Reader:
    """What reads the ratings: `pattern` where it is given, else the JSON object with `key`; the last one counts.

    A judge that reasons first may name other numbers on its way, so that the last one is its rating.

    Args:
        key: of the JSON object.
        pattern: a regular expression whose only group is the number.
        high: the highest rating: a number out of another one, such as "4/5" where it is 10, is no rating.

    Raises:
        UsageError: the pattern is no regular expression with one group.
    """
    if pattern is None:
        return lambda answer, _: _last(_number(found[key], high) for found in _objects(answer) if key in found)
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"vlm-judge: the pattern {pattern!r} is no regular expression: {error}.") from error
    if compiled.groups != 1:
        raise UsageError(
            f"vlm-judge: expected a pattern with one group, the number, such as 'Score: ([0-9.]+)'; got {pattern!r} "
            f"with {compiled.groups}."
        )

    def read(answer: str, cut: bool) -> float | None:
        found = (match for match in compiled.finditer(answer) if not (cut and match.end(1) == len(answer)))
        return _last(_number(match[1], high) for match in found)  # of a number at the cut, digits may be missing

    return read


def scaled(rating: float | None, low: float, high: float) -> float | None:
    """A rating in [low, high] -> [0, 1]; None for one that is not there or not in the range.

    >>> scaled(7.5, 0, 10), scaled(1, 1, 5), scaled(11, 0, 10)
    (0.75, 0.0, None)
    """
    return None if rating is None or not low <= rating <= high else (rating - low) / (high - low)


def _last(ratings: Iterator[float | None]) -> float | None:
    return next(reversed(list(ratings)), None)


def _number(value: Any, high: float) -> float | None:
    """A number, also as text or with the highest rating, such as "7/10"; None for anything else, such as true."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    match = _NUMBER.fullmatch(str(value))
    if match is None or (match[2] is not None and float(match[2]) != high):
        return None
    return float(match[1])


def _objects(answer: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, in their order; those inside another count as part of it."""
    decoder, start = json.JSONDecoder(), answer.find("{")
    while start >= 0:
        try:
            found, end = decoder.raw_decode(answer, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield found
        start = answer.find("{", end)
