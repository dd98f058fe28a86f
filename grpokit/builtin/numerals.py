r"""Numbers as people and models write them: signs, separators of thousands, fractions, powers of ten, LaTeX.

>>> number("-$1,234.50"), number(r"\frac12"), last_number("from 3-5 to 2.5e-3.")
(Fraction(-2469, 2), Fraction(1, 2), Fraction(1, 400))
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from fractions import Fraction

MOST_DIGITS = 400
"""A number with more digits or a larger power of ten is not read, which bounds the cost."""

_SIGNS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\u2796\ufe63"), "-")
_SIGNS |= {0x66B: ".", 0x66C: ",", 0x2044: "/"}
_WIDE = {0xFF01 + i: chr(0x21 + i) for i in range(94)}
_DIGIT = re.compile(r"\d")
_VULGAR = re.compile(r"([0-9]?)([\u00bc-\u00be\u2150-\u215e])")  # 1½

_SEPARATOR = r"(?:\{?,\}?(?:\\!)?|\\[,;:!]|[\u00a0\u2007\u2009\u202f])"
# Atomic groups, since Python before 3.11.5 matches possessive repeats of groups wrongly (python/cpython#106052).
_PAIRS = rf"(?>(?:{_SEPARATOR}[0-9]{{2}}(?![0-9])){{0,4}})"
_DIGITS = rf"[0-9]++(?>(?:{_PAIRS}{_SEPARATOR}[0-9]{{3}}(?![0-9]))*)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]*+)?|(?<![\w.])\.[0-9]++)"
_POWER = r"(?:[eE]|\s?(?:[×·*]|\\times|\\cdot)\s?10\s?\^\s?\{?)[-+]?[0-9]++\}?"
_PLAIN = rf"{_DECIMAL}(?>(?:{_POWER})?)"
_ARGUMENT = r"\s?(?:[0-9]|\{[^{}]{1,80}\})"
_NUMBER = re.compile(
    rf"""(?: (?<![^\W_]) (?<![)\]}}%]) (?P<sign>[-+]) (?:\\?[$€£¥₹]\ ?)? )?  # not that of a difference or a hyphen
    (?: (?P<whole>[0-9]{{1,12}}+) (?:\ ?(?=\\[dtc]?frac)|\ (?=[0-9]{{1,12}}+\ ?/\ ?[0-9])) )?
    (?: \\[dtc]?frac (?P<above>{_ARGUMENT}) (?P<below>{_ARGUMENT})
      | (?P<one>{_PLAIN}) (?> (?: \ ?/\ ? (?P<other>{_PLAIN}) )? ) )""",
    re.VERBOSE,
)

_UNIT = re.compile(r"\\(?:text|math|mbox)[a-z]*\{([^{}]*)\}(?:\s?\^\s?(?:[0-9]|\{[-0-9]{1,3}\}))?")
_POWER_OF_LETTERS = re.compile(r"(?<=[A-Za-z])\s?\^\s?(?:-?[0-9]|\{-?[0-9]{1,2}\})")  # such as m/s^2
_SPACE = re.compile(r"\\[ ,;:]|\\q?quad|~|\s")
_UNCOUNTED = re.compile(r"\\?[$%]|[€£¥₹°]|\^\{?\\circ\}?|\\!")
_GAP = re.compile(r"(?<=[0-9]) (?=[0-9]{3}(?![0-9]))|(?<=^[-+]) +")


def normal_form(text: str) -> str:
    """A text in NFC without invisible characters, with one kind of minus sign, of digits and of fractions.

    >>> normal_form("\\u22125 \\uff15\\u200b 1\\u00bd")
    '-5 5 1 1/2'
    """
    if text.isascii():
        return text
    composed = unicodedata.normalize("NFC", text)
    visible = "".join(c for c in composed if unicodedata.category(c) != "Cf")
    digits = _DIGIT.sub(lambda digit: str(int(digit[0])), visible.translate(_SIGNS | _WIDE))
    return _VULGAR.sub(_fraction, digits)


def _fraction(match: re.Match[str]) -> str:
    """A whole number's last digit, if there is one, and a fraction of one character: "1½" -> "1 1/2"."""
    value = Fraction(unicodedata.numeric(match[2])).limit_denominator(10)
    return f"{match[1]} {value}" if match[1] else str(value)


def bare(answer: str) -> str:
    r"""An answer without currency, percent and degree signs, units in \text, emphasis and final stop.

    >>> bare(r"**$5\ \text{cm}^2.**"), bare(r"\text{yes}")
    ('5', 'yes')
    """
    text = normal_form(answer)
    is_unit_alone = not _UNIT.sub("", text).strip()
    text = _UNIT.sub(r"\1" if is_unit_alone else " ", text)
    text = _UNCOUNTED.sub("", _SPACE.sub(" ", text))
    return text.strip(" *_`").rstrip(" *_`.。")


def number(text: str) -> Fraction | None:
    """The number that a text is, with what `bare` leaves out; None if it is not a number."""
    match = _NUMBER.fullmatch(_GAP.sub("", bare(text)))
    return None if match is None else _value(match)


def last_number(text: str) -> Fraction | None:
    """The last number in a text; None if there is no number, or its value is undefined, such as 1/0."""
    # the power of a unit is none of the answer's
    text = _POWER_OF_LETTERS.sub(" ", _UNIT.sub(r" \1 ", normal_form(text)))
    found = deque(_NUMBER.finditer(text), maxlen=1)
    return _value(found[0]) if found else None


def _value(match: re.Match[str]) -> Fraction | None:
    above = match["above"] or match["one"]
    below = match["below"] or match["other"] or "1"
    read = number if match["above"] else _decimal
    numerator, denominator = read(above.strip(" {}")), read(below.strip(" {}"))
    if numerator is None or not denominator:
        return None
    value = int(match["whole"] or 0) + numerator / denominator
    return -value if match["sign"] == "-" else value


def _decimal(text: str) -> Fraction | None:
    mantissa, _, power = re.sub(r"[eE]|\s?(?:[×·*]|\\times|\\cdot).*\^", "|", text).partition("|")
    digits, exponent = re.sub(r"[^0-9.]", "", mantissa), power.strip(" {}").lstrip("+") or "0"
    if len(digits) > MOST_DIGITS or len(exponent) > 4 or abs(int(exponent)) > MOST_DIGITS:
        return None
    return Fraction(digits) * Fraction(10) ** int(exponent)
