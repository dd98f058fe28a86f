"""Expressions are computed exactly, and what is none of them is refused at no cost."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from grpokit_lm.tasks.expressions import LONGEST, ExpressionError, compute


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("7", 7, (7,)),
        ("3*5+7", 22, (3, 5, 7)),
        ("7+3*5", 22, (7, 3, 5)),
        ("(7+3)*5", 50, (7, 3, 5)),
        ("20-7-3", 10, (20, 7, 3)),  # from the left
        ("20-(7-3)", 16, (20, 7, 3)),
        ("8/4/2", 1, (8, 4, 2)),
        ("8/(4/2)", 4, (8, 4, 2)),
        ("1/3*3", 1, (1, 3, 3)),  # no rounding on the way
        ("1/3", Fraction(1, 3), (1, 3)),
        (" ( 3 + 5 )\t* 2 ", 16, (3, 5, 2)),
        ("((7))", 7, (7,)),
        ("007", 7, (7,)),
        ("6×7÷2−1·1", 20, (6, 7, 2, 1, 1)),
    ],
)
def test_values_by_hand(text: str, value: int | Fraction, numbers: tuple[int, ...]) -> None:
    computed = compute(text)
    assert (computed.value, computed.numbers) == (value, numbers)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the text ends instead of a number"),
        ("3+", "the text ends instead of a number"),
        ("*3", r"'\*' stands instead of a number"),
        ("-3", "'-' stands instead of a number"),
        ("3+-5", "'-' stands instead of a number"),
        ("2**3", r"'\*' stands instead of a number"),  # no powers
        ("9//2", "'/' stands instead of a number"),
        ("3 5", "'5' stands where an operator should"),
        ("2(3)", r"'\(' stands where an operator should"),
        ("(3+5", "a bracket is not closed"),
        ("3+5)", r"'\)' stands where an operator should"),
        ("()", r"'\)' stands instead of a number"),
        ("3=3", "'=' is neither a number, an operator nor a bracket"),
        ("3.5", "'.' is neither"),
        ("1e9", "'e' is neither"),
        ("2^9", r"'\^' is neither"),
        ("1_0", "'_' is neither"),
        ("3,5", "',' is neither"),
        ("a+b", "'a' is neither"),
        ("__import__('os')", "'_' is neither"),
        ("3\n+5", r"'\\n' is neither"),
        ("٣+٥", "'٣' is neither"),  # Arabic digits
        ("３+5", "'３' is neither"),  # full-width
        ("2²", "'²' is neither"),
        ("5/0", "it divides by zero"),
        ("5/(3-3)", "it divides by zero"),
        ("1234567890", "a number has 10 digits; at most 9 are read"),
        ("1+" * LONGEST, "it has 400 characters; at most 200 are read"),
    ],
)
def test_what_is_no_expression(text: str, words: str) -> None:
    with pytest.raises(ExpressionError, match=words):
        compute(text)


def test_the_longest_and_the_deepest_cost_nothing() -> None:
    start = time.process_time()
    assert compute("9" + "*999999999" * 19).value == 9 * 999999999**19
    assert compute("(" * 99 + "7" + ")" * 99).value == 7
    for text in ("(" * 200, "9" * 10**6, "1+" * 10**6):
        with pytest.raises(ExpressionError):
            compute(text)
    assert time.process_time() - start < 0.5
