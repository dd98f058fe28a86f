"""Arithmetic expressions: whole numbers, + - * / and brackets, computed exactly by a small parser.

Expressions come from a model, so nothing here calls `eval`, and an expression's cost is bounded before it is computed:
there are no powers, and a number or a text that is too long is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 200
"""Characters of an expression; one that uses a handful of numbers needs far fewer."""

_DIGITS = 9  # of a number
_TOKEN = re.compile(r"[ \t]*(?:([0-9]+)|(.))", re.DOTALL)  # not \d, which has the digits of all scripts
_SAME = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})


class ExpressionError(ValueError):
    """The text is no expression, or has no value."""


@dataclass(frozen=True, kw_only=True)
class Computed:
    """An expression's value, and the numbers that it is made of.

    Attributes:
        value: exact.
        numbers: in their order in the text.
    """

    value: Fraction
    numbers: tuple[int, ...]


def compute(text: str) -> Computed:
    """Compute an expression.

    Args:
        text: whole numbers in ASCII digits, + - * / (or × · ÷ −), brackets, and spaces between them. A minus belongs
            between two terms: there are no signs.

    Raises:
        ExpressionError: it is something else, divides by zero, or is longer than `LONGEST`.

    >>> compute("(3 + 5) * 2")
    Computed(value=Fraction(16, 1), numbers=(3, 5, 2))
    >>> compute("1/3").value
    Fraction(1, 3)
    """
    if len(text) > LONGEST:
        raise ExpressionError(f"it has {len(text):,} characters; at most {LONGEST} are read")
    reader = _Reader(_tokens(text.translate(_SAME)))
    value = reader.sum()
    if reader.next is not None:
        raise ExpressionError(f"'{reader.next}' stands where an operator should")
    return Computed(value=value, numbers=tuple(reader.numbers))


def _tokens(text: str) -> Iterator[str | int]:
    for match in _TOKEN.finditer(text.strip(" \t")):
        number, sign = match.groups()
        if number is None and sign not in "+-*/()":
            raise ExpressionError(f"{sign!r} is neither a number, an operator nor a bracket")
        if number is not None and len(number) > _DIGITS:
            raise ExpressionError(f"a number has {len(number)} digits; at most {_DIGITS} are read")
        yield sign if number is None else int(number)


class _Reader:
    """Recursive descent: a sum of products of numbers and bracketed sums. `LONGEST` bounds the depth."""

    def __init__(self, tokens: Iterator[str | int]) -> None:
        self.tokens = tokens
        self.numbers: list[int] = []
        self.next: str | int | None = next(tokens, None)

    def sum(self) -> Fraction:
        value = self.product()
        while self.next in ("+", "-"):
            value = value + self.product() if self.take() == "+" else value - self.product()
        return value

    def product(self) -> Fraction:
        value = self.factor()
        while self.next in ("*", "/"):
            if self.take() == "*":
                value *= self.factor()
                continue
            divisor = self.factor()
            if not divisor:
                raise ExpressionError("it divides by zero")
            value /= divisor
        return value

    def factor(self) -> Fraction:
        token = self.take()
        if token == "(":
            value = self.sum()
            if self.take() != ")":
                raise ExpressionError("a bracket is not closed")
            return value
        if not isinstance(token, int):
            raise ExpressionError(
                f"{'the text ends' if token is None else repr(token) + ' stands'} instead of a number"
            )
        self.numbers.append(token)
        return Fraction(token)

    def take(self) -> str | int | None:
        token, self.next = self.next, next(self.tokens, None)
        return token
