"""Numbers in texts: the table of all notations, for a text that is a number and for the last one in a text."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from grpokit.builtin.numerals import MOST_DIGITS, last_number, number

SAME = "the same"


@pytest.mark.parametrize(
    ("text", "whole", "last"),
    [
        ("5", 5, SAME),
        ("5.", 5, SAME),
        ("5.0", 5, SAME),
        (".5", "1/2", SAME),
        ("-.5", "-1/2", SAME),
        ("+5", 5, SAME),
        # powers of ten
        ("1e5", 100_000, SAME),
        ("1E+5", 100_000, SAME),
        ("2.5e-3", "1/400", SAME),
        (r"2.5 \times 10^{-3}", "1/400", SAME),
        ("3×10^5", 300_000, SAME),
        ("3 * 10^5", 300_000, SAME),
        # signs
        ("-5", -5, SAME),
        *((f"{sign}5", -5, SAME) for sign in "\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d\u2796"),
        ("- 5", -5, 5),
        ("3-5", None, 5),
        ("3–5", None, 5),
        ("3 - 5", None, 5),
        ("x = -5", None, -5),
        ("(-5)", None, -5),
        ("(2)-5", None, 5),
        ("50%-5", None, 5),
        ("GPT-5", None, 5),
        # currency, percent, units, emphasis
        ("$5", 5, SAME),
        ("-$5", -5, SAME),
        ("$-5", -5, SAME),
        (r"-\$1,234.50.", "-2469/2", SAME),
        ("−€ 5", -5, SAME),
        ("5 %", 5, SAME),
        (r"50\%", 50, SAME),
        (r"90^{\circ}", 90, SAME),
        ("90°", 90, SAME),
        (r"5\ \text{cm}", 5, SAME),
        (r"5\,\mathrm{cm}^2", 5, SAME),
        (r"\text{5}", 5, SAME),
        ("**5**", 5, SAME),
        ("__-5__", -5, SAME),
        ("`5`", 5, SAME),
        (r"\boxed{5\ \text{cm}}", None, 5),
        ("5 m/s^2", None, 5),
        (r"x^{2} = 5 cm^{-1}", None, 5),
        # thousands
        ("8,000", 8000, SAME),
        ("8{,}000", 8000, SAME),
        (r"8\,000", 8000, SAME),
        (r"10,\!000", 10_000, SAME),
        ("1,00,000", 100_000, SAME),
        *((f"8{space}000", 8000, SAME) for space in "\u00a0\u2007\u2009\u202f"),
        ("8 000", 8000, 0),
        ("1,2", None, 2),
        ("3,14", None, 14),
        ("1 2", None, 2),
        # fractions
        ("3/4", "3/4", SAME),
        ("-3 / 4", "-3/4", SAME),
        (r"\frac{3}{4}", "3/4", SAME),
        (r"-\dfrac{1.5}{2}", "-3/4", SAME),
        (r"\frac12", "1/2", SAME),
        ("½", "1/2", SAME),
        ("-1½", "-3/2", SAME),
        ("1 ⅔", "5/3", SAME),
        ("1⁄2", "1/2", SAME),
        ("about 7⅞ cups", None, "63/8"),
        (r"\frac1{20}", "1/20", SAME),
        ("2 1/2", "5/2", SAME),
        (r"-2\frac{1}{2}", "-5/2", SAME),
        ("1/0", None, SAME),
        (r"\frac{x}{2}", None, SAME),
        # other scripts, and what cannot be seen
        ("１８", 18, SAME),
        ("١٨", 18, SAME),
        ("3٫5", "7/2", SAME),
        ("٣٫٥", "7/2", SAME),
        ("1٬234", 1234, SAME),
        ("\u200e-5\u200b", -5, SAME),
        ("\u3000 5 \u00a0", 5, SAME),
        # no numbers, or not one
        ("", None, SAME),
        ("five", None, SAME),
        ("-", None, SAME),
        (".", None, SAME),
        ("...5", None, 5),
        ("version 1.2.3", None, 3),
        ("first 4, then 5.", None, 5),
        ("9" * MOST_DIGITS, 10**MOST_DIGITS - 1, SAME),
        ("9" * (MOST_DIGITS + 1), None, SAME),
        ("1e999999999", None, SAME),
    ],
)
def test_what_a_number_is(text: str, whole: str | int | None, last: str | int | None) -> None:
    expected = [None if value is None else Fraction(value) for value in (whole, whole if last == SAME else last)]
    assert [number(text), last_number(text)] == expected


@pytest.mark.parametrize(
    "piece",
    ["9", "9,", "9,999", ",23", "1 ", "1/", "2 1/", "-", "{", r"\frac{", r"\frac1", r"\text{", " ", "e1", "9×10^"],
)
def test_long_texts_cost_little(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    start = time.process_time()
    number(text), last_number(text)
    assert time.process_time() - start < 1
