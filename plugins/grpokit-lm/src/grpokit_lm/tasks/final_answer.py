"""The reward `final-answer`: the answer that a text marks last, by `####` or `\\boxed{...}`, is the target's.

GSM8K's solutions mark theirs by `####`, those of MATH by `\\boxed`; a model writes either. Two answers are equal if
they are the same number, however it is written, or else the same text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction

from grpokit import Sample, UsageError
from grpokit.builtin.answers import boxed_answer, unwrap
from grpokit.builtin.numerals import bare, number
from grpokit.builtin.text_rewards import text_of
from grpokit.errors import a_type

_LAST_MARK = re.compile(r".*(####|\\boxed *\{)", re.DOTALL)


def final_answer(samples: Sequence[Sample]) -> list[float]:
    """1 where the last marked answer of the text equals the target's, else 0; a text without one has 0.

    A target is a number, or a text: a whole solution with a marked answer of its own, or the answer alone; a blank one
    gives NaN. A mark with nothing behind it has no answer. What does not count: currency, percent and degree signs,
    units in \\text{...}, thousands separators, spaces, and what is written around an answer (`answers.unwrap`).
    1/2, .5 and \\frac{1}{2} are equal.
    """
    return [_score(sample) for sample in samples]


def _score(sample: Sample) -> float:
    text, target = text_of(sample, "final-answer"), sample.prompt.target
    if target is None:
        return math.nan
    if not isinstance(target, (str, int, float)):
        raise UsageError(f"final-answer compares with a text or a number, but the target is {a_type(target)}.")
    answer, right = marked(text), str(target)
    if not right.strip():
        return math.nan
    if not answer:
        return 0.0
    return float(value(marked(right) or right) in map(value, unwrap(answer)))


def marked(text: str) -> str | None:
    """The last marked answer of a text: the rest of the line after `####`, or what `\\boxed{...}` holds.

    >>> marked("2 + 3 = 5\\n#### 5"), marked("so \\\\boxed{\\\\frac{1}{2}}."), marked("it is 5")
    ('5', '\\\\frac{1}{2}', None)
    """
    last = _LAST_MARK.match(text)
    if last is None:
        return None
    return "".join(text[last.end() :].splitlines()[:1]).strip() if last[1] == "####" else boxed_answer(text)


def value(answer: str) -> Fraction | str:
    """An answer as a number, or as a text without what does not count.

    >>> value("$1,234.50."), value("-3/4"), value("\\\\frac{1}{2}"), value("50\\\\%"), value("(a, b)")
    (Fraction(2469, 2), Fraction(-3, 4), Fraction(1, 2), Fraction(50, 1), '(a,b)')
    """
    found = number(answer)
    return bare(answer).replace(" ", "") if found is None else found
