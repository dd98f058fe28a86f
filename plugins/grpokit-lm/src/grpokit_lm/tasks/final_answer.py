"""The reward `final-answer`: the answer that a text marks last, by `####` or `\\boxed{...}`, is the target's.

GSM8K's solutions mark theirs by `####`, those of MATH by `\\boxed`; a model writes either. Two answers are equal if
they are the same number, however it is written, or else the same text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from grpokit import Sample, UsageError
from grpokit.builtin.text_rewards import text_of
from grpokit.errors import a_type

_LAST_MARK = re.compile(r".*(####|\\boxed *\{)", re.DOTALL)
_NUMBER = re.compile(r"([-+]?)([0-9]{1,40})?(?:\.([0-9]{0,40}))?")  # bounded, so that no number is costly
_FRACTION = re.compile(r"([-+]?)\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_TEXT = re.compile(r"\\(?:text|mathrm|mathbf)\{([^{}]*)\}")
_THOUSANDS = re.compile(r"(?<=[0-9])(?:,|\{,\}|\\,|\\!)(?=[0-9]{3})")


def final_answer(samples: Sequence[Sample]) -> list[float]:
    """1 where the last marked answer of the text equals the target's, else 0; a text without one has 0.

    A target is a number, or a text: a whole solution with a marked answer of its own, or the answer alone. Currency and
    percent signs, thousands separators, spaces and a final full stop do not count. 1/2, 0.5 and \\frac{1}{2} are equal.
    """
    return [_score(sample) for sample in samples]


def _score(sample: Sample) -> float:
    text, target = text_of(sample, "final-answer"), sample.prompt.target
    if target is None:
        return math.nan
    if not isinstance(target, (str, int, float)):
        raise UsageError(f"final-answer compares with a text or a number, but the target is {a_type(target)}.")
    answer, right = marked(text), str(target)
    return float(answer is not None and value(answer) == value(marked(right) or right))


def marked(text: str) -> str | None:
    """The last marked answer of a text: the rest of the line after `####`, or what `\\boxed{...}` holds.

    >>> marked("2 + 3 = 5\\n#### 5"), marked("so \\\\boxed{\\\\frac{1}{2}}."), marked("it is 5")
    ('5', '\\\\frac{1}{2}', None)
    """
    last = _LAST_MARK.match(text)
    if last is None:
        return None
    rest = text[last.end() :]
    return rest.split("\n", 1)[0].strip() if last[1] == "####" else _to_closing_brace(rest)


def value(answer: str) -> Fraction | str:
    """An answer as a number, or as a text without what does not count.

    >>> value("$1,234.50."), value("-3/4"), value("\\\\frac{1}{2}"), value("50\\\\%"), value("(a, b)")
    (Fraction(2469, 2), Fraction(-3, 4), Fraction(1, 2), Fraction(50, 1), '(a,b)')
    """
    text = _THOUSANDS.sub("", _TEXT.sub("", answer).strip() or _TEXT.sub(r"\1", answer))  # \text{ apples} is a unit
    for sign in ("\\$", "$", "\\%", "%", "\\ ", " "):
        text = text.replace(sign, "")
    text = text.rstrip(".")
    return next((number for number in _numbers(text) if number is not None), text)


def _numbers(text: str) -> Iterator[Fraction | None]:
    """What the text is as a number and as a fraction of two; None for what it is not."""
    yield _number(text)
    match = _FRACTION.fullmatch(text)
    sign, above, below = match.groups() if match else ("", *text.partition("/")[::2])
    numerator, denominator = _number(above), _number(below)
    if numerator is not None and denominator:
        yield (-1 if sign == "-" else 1) * numerator / denominator


def _number(text: str) -> Fraction | None:
    match = _NUMBER.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        return None
    whole, decimals = match[2] or "0", match[3] or ""
    number = Fraction(int(whole + decimals), 10 ** len(decimals))
    return -number if match[1] == "-" else number


def _to_closing_brace(text: str) -> str | None:
    depth = 1
    for position, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if not depth:
            return text[:position].strip()
    return None
