"""What a judge's answer says: its words, the rating or the ranking in them, and how probable other words were."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from grpokit import RewardError, UsageError
from grpokit.builtin.numerals import normal_form, number

_MINUS = "\u2212"  # JSON and most patterns have - instead
_THINKS, _HAS_THOUGHT = (re.compile(rf"<{slash}think(?:ing)?>", re.IGNORECASE) for slash in ("", "/"))
_SCALE = r"\(?(?:/|(?:out )?of) *([0-9.]+)"
_RATING = re.compile(rf"([-+]?[0-9.,]+) *(?:{_SCALE}|(%))?", re.IGNORECASE)
_FRACTION = re.compile(rf'(?<!\\)("\s*:\s*)([-+0-9.]+ *(?:{_SCALE}|%))(?=\s*[,}}])')
_BEHIND = re.compile(
    r"\w*(?:[.,:][0-9]\w*)*"  # the number goes on, or has a unit
    r"(?: ?(?:[-–]|to|or) ?[0-9]\w*| [0-9]+/[0-9]+| ?[¼-¾])?"  # the end of a range, or a fraction
    rf" *(?:{_SCALE}|[%°‰★⭐]|percent\b|stars?\b)?",
    re.IGNORECASE,
)


def words(answer: Mapping[str, Any]) -> tuple[str, bool]:
    """The text of an answer, and whether it was cut at its end; empty where a server leaves it out."""
    try:
        choice = answer["choices"][0]
        words = choice["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return "", False
    if isinstance(words, list):  # in parts
        parts = [part for part in words if isinstance(part, dict)]
        words = "".join(str(part.get("text", "")) for part in parts)
    cut = choice.get("finish_reason") in ("length", "content_filter")
    return words if isinstance(words, str) else "", cut


def after_thoughts(text: str) -> tuple[str, int]:
    """What stands behind the last thought, up to one that is not finished; and where in the text it begins."""
    behind = _HAS_THOUGHT.split(text)[-1]
    return _THINKS.split(behind)[0], len(text) - len(behind)


def likeliest(answer: Mapping[str, Any], place: int) -> tuple[str, dict[str, float]]:
    """The token where the text of an answer has its character `place`, and the likeliest there by their probabilities.

    Raises:
        RewardError: the server gives no log-probs.
    """
    chosen, found = "", dict[str, float]()
    try:
        tokens = answer["choices"][0]["logprobs"]["content"]
        # Some servers count the tokens of thoughts, too, and write parts of a character in ways of their own.
        text, _ = words(answer)
        behind = "".join(token["token"] for token in tokens).rfind(text[place:])
        place = place if behind < 0 else behind
        for token in tokens:
            place -= len(token["token"])
            if place < 0:
                chosen = token["token"]
                found = {each["token"]: math.exp(each["logprob"]) for each in token["top_logprobs"]}
                break
    except (KeyError, IndexError, TypeError):
        pass
    if not found:
        raise RewardError(
            "logprobs is set, and the server's answer has no log-probs of its tokens "
            "(choices[0].logprobs.content[].top_logprobs). Leave logprobs at 0, or take a server that gives them."
        )
    return chosen, found


class Ratings:
    """Reads ratings: what `pattern` finds where it is given, else the JSON object with `key`; the last one counts.

    A judge that reasons first may name other numbers on its way, so that the last one is its rating; what it thinks
    between `<think>` and `</think>`, or has not finished to think, is none.

    Args:
        key: of the JSON object.
        pattern: a regular expression whose only group is the number.
        low: the lowest rating.
        high: the highest one: a number out of another one, such as "4/5" where it is 10, is no rating.

    Raises:
        UsageError: the pattern is no regular expression with one group.
    """

    def __init__(self, *, key: str, pattern: str | None, low: float, high: float) -> None:
        self.key, self.low, self.high = key, low, high
        self.pattern = None if pattern is None else _compiled(pattern)

    def rating(self, text: str) -> Fraction | None:
        """The rating in the words of an answer as it stands there; None if none in the range is there."""
        conclusion = after_thoughts(text)[0].replace(_MINUS, "-")
        if self.pattern is None:
            named = values(conclusion, self.key)
        else:
            named = [_with_scale(match) for match in self.pattern.finditer(conclusion)]
        rating = _number(named[-1], self.high) if named else None
        return rating if rating is not None and self.low <= rating <= self.high else None

    def expected(self, answer: Mapping[str, Any]) -> float | None:
        """The mean of the ratings that the judge might have given instead, by the log-probs of their tokens.

        It is sum p(r) r / sum p(r) over the likeliest tokens where the rating stands that are whole numbers in the
        range. None where the rating itself is none.

        Raises:
            RewardError: the server gives no log-probs.
        """
        text, _ = words(answer)
        conclusion, begin = after_thoughts(text)
        pattern = self.pattern or re.compile(rf'"{re.escape(self.key)}"\s*:\s*(-?[0-9.]+|"[^"]*")')
        last = next(reversed(list(pattern.finditer(conclusion))), None)
        named = last and re.search(r"[0-9][0-9.]*", last[1])
        rating = self.rating(text)
        if last is None or not named or rating is None or rating != number(named[0]) or rating.denominator > 1:
            return None
        _, tokens = likeliest(answer, begin + last.start(1) + named.start())
        chances: dict[int, float] = {}
        for token, chance in tokens.items():
            plain = re.sub(r"\W", "", token)
            if len(plain) == 1 and plain.isdecimal() and self.low <= int(plain) <= self.high:
                chances[int(plain)] = chances.get(int(plain), 0.0) + chance
        total = math.fsum(chances.values())
        if not total:
            return None
        return math.fsum(each * chance for each, chance in chances.items()) / total


def ranking(text: str, count: int) -> list[int] | None:
    """The order of `count` pictures in the words of an answer: their numbers from 1, the best first; None if none.

    >>> ranking('The second is sharper. {"ranking": [2, 1]}', 2), ranking('{"ranking": [2, 2]}', 2)
    ([2, 1], None)
    """
    orders = values(after_thoughts(text)[0], "ranking")
    order = orders[-1] if orders else None
    if isinstance(order, str):
        order = re.findall("[0-9]+", order)
    if not isinstance(order, list):
        return None
    numbers = [int(each) if isinstance(each, str) and each.isdecimal() else each for each in order]
    whole = all(type(each) is int for each in numbers)  # 1.0 and true are none
    return numbers if whole and sorted(numbers) == list(range(1, count + 1)) else None


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern.replace(_MINUS, r"\-"))
    except re.error as error:
        raise UsageError(f"vlm-judge: the pattern {pattern!r} is no regular expression: {error}.") from error
    if compiled.groups != 1:
        raise UsageError(
            f"vlm-judge: expected a pattern with one group, the number, such as 'Score: ([0-9.]+)'; got {pattern!r} "
            f"with {compiled.groups}."
        )
    return compiled


def _with_scale(match: re.Match[str]) -> str | None:
    """The group of a pattern, and what belongs to its number in the text behind it."""
    if match[1] is None:
        return None
    behind = match.string[match.end(1) :][:40].replace("*", "")
    return match[1] + _BEHIND.match(behind)[0]  # type: ignore[index]  # which an empty text matches, too


def _number(value: Any, high: float) -> Fraction | None:
    """A number, also as text or with the highest rating, such as "7/10"; None for anything else, such as true."""
    if isinstance(value, (int, float)):
        return None if isinstance(value, bool) else number(str(value))
    match = _RATING.fullmatch(normal_form(str(value)).strip(" *_`").rstrip(" *_`."))
    if match is None:
        return None
    scale = match[2] or (match[3] and "100")
    return number(match[1]) if scale is None or number(scale) == high else None


def values(answer: str, key: str) -> list[Any]:
    """What the JSON objects in a text have under a key, in their order; also one level deeper, where one part has it.

    >>> values('{"score": {"rating": 8/10}} {"a": {"rating": 2}, "b": {"rating": 3}}', "rating")
    ['8/10', None]
    """
    named = []
    for each in objects(_FRACTION.sub(r'\1"\2"', answer[-100_000:])):  # the rating is at the end
        inner = [part for part in each.values() if isinstance(part, dict)]
        parts = [each] if key in each else [part for part in inner if key in part]
        if parts:
            named.append(parts[0][key] if len(parts) == 1 else None)
    return named


def objects(answer: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, in their order; those inside another count as part of it."""
    decoder, start = json.JSONDecoder(strict=False), answer.find("{")  # texts may have line breaks
    while start >= 0:
        try:
            found, end = decoder.raw_decode(answer, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield found
        start = answer.find("{", end)
