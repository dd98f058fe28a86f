"""Rewards on text: exact match, contains, format, numeric answer, length, and penalties for length and repetition.

Each gives NaN where a sample's prompt has no target to compare with. A `pattern` is a regular expression (module
`re`, dot matches line breaks); where it has a group, the group is what counts. Letters with accents are equal however
they are coded (Unicode NFC), in patterns too. Those with something to check in their
parameters are classes, so that a mistake is found when they are built; the other is a plain function.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Annotated, Literal

from annotated_types import Le

from grpokit.builtin.answers import boxed_answer, unwrap
from grpokit.builtin.numerals import last_number, number
from grpokit.errors import DataError, UsageError, a_type, brief
from grpokit.rewards.missing_inputs import text_target
from grpokit.settings import Count, NotNegative
from grpokit.types import Prompt, Sample

_GOES_ON = re.compile(r"[0-9]*(?:[.,/][0-9]+)*")


class ExactMatch:
    """1 where the text equals the target (both stripped of outer white space), else 0.

    So does a text that is the target in a code fence, in LaTeX such as \\boxed{}, in quotes or in emphasis, or with a
    full stop (`answers.unwrap`).

    Args:
        pattern: compare only what this finds in the text; no match scores 0.
        ignore_case: compare case-folded.
    """

    def __init__(self, *, pattern: str | None = None, ignore_case: bool = False) -> None:
        self.pattern = None if pattern is None else compile_pattern(pattern, "exact-match")
        self.ignore_case = ignore_case

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """One number per sample."""
        return [_against_target(s, "exact-match", self._one) for s in samples]

    def _one(self, text: str, target: str) -> float:
        answer = text if self.pattern is None else _extract(text, self.pattern)
        if answer is None:
            return 0.0
        right, answers = target.strip(), unwrap(answer)
        if self.ignore_case:
            right, answers = right.casefold(), map(str.casefold, answers)
        return float(right in answers)


def contains(samples: Sequence[Sample], *, ignore_case: bool = False) -> list[float]:
    """1 where the text contains the target, else 0; NaN where the target is blank, which every text contains.

    Easily fooled by long texts: mix it with `length`.

    Args:
        ignore_case: "Paris" is in "PARIS", too.
    """

    def one(text: str, target: str) -> float:
        if not target.strip():
            return math.nan
        return float(target.casefold() in text.casefold() if ignore_case else target in text)

    return [_against_target(s, "contains", one) for s in samples]


class TextFormat:
    """1 where the *whole* text matches `pattern`, else 0.

    Args:
        pattern: a regular expression.
    """

    def __init__(self, *, pattern: str) -> None:
        self.pattern = compile_pattern(pattern, "format")

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """One number per sample."""
        texts = [_composed(text_of(sample, "format")) for sample in samples]
        return [float(self.pattern.fullmatch(text) is not None) for text in texts]


class NumericAnswer:
    """1 where the number that the text gives equals the target number, else 0.

    Samples are texts, each with a number (or its text) as target. Numbers are read as `numerals` describes: -$1,234.50,
    2.5e-3, 3/4 and \\frac{3}{4} are numbers, and "3-5" ends in 5.

    Args:
        pattern: its group matches the number, which may be wrapped (`answers.unwrap`). Digits that go on behind the
            match belong to it: 4.5 is not 4. None: the last number in the last \\boxed{...}, or without one in the
            text. No match scores 0.
        tolerance: the largest absolute difference that still counts.
    """

    def __init__(self, *, pattern: str | None = None, tolerance: NotNegative = 0.0) -> None:
        self.pattern = (
            None if pattern is None else with_group(pattern, "numeric-answer", finds="the number", example="([0-9]+)")
        )
        self.tolerance = Fraction(str(tolerance))

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """One number per sample."""
        return [_against_target(s, "numeric-answer", self._one) for s in samples]

    def _one(self, text: str, target: str) -> float:
        right = _target_number(target)
        if self.pattern is None:
            answer = last_number(boxed_answer(text) or text)
        else:
            numbers = map(number, unwrap(_whole_number(text, self.pattern)))
            answer = next((each for each in numbers if each is not None), None)
        return float(answer is not None and abs(answer - right) <= self.tolerance)


def without_number(prompt: Prompt) -> str:
    """Why `numeric-answer` cannot score a prompt; empty if it can.

    Raises:
        DataError: the target is not a number.
    """
    lacks = text_target(prompt)
    if not lacks:
        _target_number(str(prompt.target))
    return lacks


def _target_number(target: str) -> Fraction:
    right = number(target)
    if right is None:
        raise DataError(f"numeric-answer: the target {brief(target)} is not a number. Correct it, or leave it out.")
    return right


class Length:
    """Minus `scale` times the number of characters by which a text is too short or too long; 0 inside the range.

    Args:
        minimum: the length of the shortest text that costs nothing.
        maximum: the length of the longest; None for no bound.
        scale: what each character costs.
    """

    def __init__(self, *, minimum: int = 0, maximum: int | None = None, scale: float = 1.0) -> None:
        if maximum is not None and maximum < minimum:
            raise UsageError(f"length: no text has at least {minimum} and at most {maximum} characters.")
        self.minimum, self.scale = minimum, scale
        self.maximum = math.inf if maximum is None else maximum

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """One number per sample."""
        return [self._one(len(text_of(s, "length"))) for s in samples]

    def _one(self, n: int) -> float:
        return 0.0 - self.scale * max(self.minimum - n, n - self.maximum, 0)  # 0, not -0, inside the range


class SoftOverlong:
    """0 up to a length, and from there evenly down to -1: the soft overlong punishment.

    From DAPO (Yu et al., 2025, arXiv:2503.14476, equation 13).

    Args:
        maximum: the length with -1; a longer text has -1 too.
        cache: how far before it the penalty begins; with 0 only a text that is longer than `maximum` has one.
        unit: "characters" of the text, or the policy's "tokens", which it counts in `Sample.info["tokens"]`.
    """

    def __init__(self, *, maximum: int, cache: int, unit: Literal["characters", "tokens"] = "characters") -> None:
        if not 0 <= cache <= maximum:
            raise UsageError(f"soft-overlong: cache must lie between 0 and the maximum {maximum}, got {cache}.")
        self.maximum, self.cache, self.unit = maximum, cache, unit

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """One number per sample."""
        return [self._one(self._length(sample)) for sample in samples]

    def _length(self, sample: Sample) -> int:
        text, tokens = text_of(sample, "soft-overlong"), sample.info.get("tokens")
        if self.unit == "characters":
            return len(text)
        if not isinstance(tokens, int):
            raise UsageError(
                "soft-overlong: the policy does not count tokens: Sample.info['tokens'] must be a whole number, got "
                f"{tokens!r}. Set unit: characters."
            )
        return tokens

    def _one(self, n: int) -> float:
        if n > self.maximum:
            return -1.0
        over = n - (self.maximum - self.cache)
        return -over / self.cache if over > 0 else 0.0


class RepetitionPenalty:
    """`max_penalty` times the share of n-grams that occur earlier in the text; 0 if none repeats.

    From "Demystifying long chain-of-thought reasoning" (Yeo et al., 2025, arXiv:2502.03373, appendix C.2). There the
    units are tokens; a reward sees the text, so here they are its words or characters.

    Args:
        ngram_size: how many units make an n-gram. A shorter text scores 0.
        max_penalty: what a text would score if it only repeated itself; 0 or less.
        unit: "words", which white space separates, or "characters", for scripts without white space.
    """

    def __init__(
        self,
        *,
        ngram_size: Count = 3,
        max_penalty: Annotated[float, Le(0)] = -1.0,
        unit: Literal["words", "characters"] = "words",
    ) -> None:
        self.ngram_size, self.max_penalty, self.unit = ngram_size, max_penalty, unit

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """One number per sample."""
        return [self._one(text_of(sample, "repetition-penalty")) for sample in samples]

    def _one(self, text: str) -> float:
        units = text.split() if self.unit == "words" else text
        starts = range(len(units) - self.ngram_size + 1)
        ngrams = [tuple(units[start : start + self.ngram_size]) for start in starts]
        repeated = len(ngrams) - len(set(ngrams))
        return self.max_penalty * repeated / len(ngrams) if repeated else 0.0


def text_of(sample: Sample, reward: str) -> str:
    """A sample's output, for the reward of this name.

    Raises:
        UsageError: it is not a text.
    """
    if not isinstance(sample.output, str):
        raise UsageError(f"{reward} scores texts, but the sample's output is {a_type(sample.output)}.")
    return sample.output


def _against_target(sample: Sample, reward: str, compare: Callable[[str, str], float]) -> float:
    text, target = text_of(sample, reward), sample.prompt.target
    if target is None:
        return math.nan
    if not isinstance(target, (str, int, float)):
        raise UsageError(f"{reward} compares with a text, but the target is {a_type(target)}.")
    return compare(_composed(text), _composed(str(target)))


def with_group(pattern: str, reward: str, *, finds: str, example: str) -> re.Pattern[str]:
    """The regular expression of a reward's `pattern`, whose group says where something is.

    Args:
        pattern: as a config gives it.
        reward: the reward's name, for the message.
        finds: what the group matches.
        example: such a group.

    Raises:
        UsageError: it is not a regular expression, or has no group.
    """
    regular = compile_pattern(pattern, reward)
    if not regular.groups:
        raise UsageError(
            f"{reward}: the pattern {pattern!r} has no group, so it does not say where {finds} is. Put parentheses "
            f"round it, as in 'Answer: {example}'."
        )
    return regular


def compile_pattern(pattern: str, reward: str) -> re.Pattern[str]:
    """The regular expression of a reward's `pattern`, in which the dot matches line breaks.

    Raises:
        UsageError: it is not a valid regular expression.
    """
    try:
        return re.compile(_composed(pattern), re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:  # the second: {99999999999}; the third: deep brackets
        raise UsageError(f"{reward}: the pattern {pattern!r} is not a regular expression: {error}.") from error


def _extract(text: str, pattern: re.Pattern[str]) -> str | None:
    match = pattern.search(text)
    return match and match.group(1 if pattern.groups else 0)


def _whole_number(text: str, pattern: re.Pattern[str]) -> str:
    """What the group of a pattern matches, with the rest of a number that goes on behind the match."""
    match = pattern.search(text)
    if match is None or match[1] is None:
        return ""
    if match.end() > match.end(1):  # the pattern itself says what follows
        return match[1]
    return match[1] + _GOES_ON.match(text, match.end())[0]  # type: ignore[index]  # which matches nothing, too


def _composed(text: str) -> str:
    """A text with each letter and its accents as one character, if Unicode has one."""
    return unicodedata.normalize("NFC", text)
