"""The grid of a sweep: words `key=a,b,c` and `seed=1..5` -> the settings of each run, with a name for its folder."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

from grpokit.config.overrides import parse_value
from grpokit.config.yaml_source import problem
from grpokit.errors import UsageError, counted, shown

FEW, MOST = 100, 10_000  # runs that need no --yes, and that a sweep may have at all
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")
_HALF_RANGE = re.compile(r"-?\d+\.\.|\.\.-?\d+")
_CLOSING = {"[": "]", "{": "}"}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a sweep.

    Attributes:
        values: swept key -> the value as text that an override takes.
        name: a folder's name.
    """

    values: dict[str, str]
    name: str


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All runs of a sweep.

    Attributes:
        fixed: overrides that all runs share.
        values: swept key -> its values; the last key changes fastest.
    """

    fixed: Sequence[str]
    values: Mapping[str, Sequence[str]]

    def points(self) -> list[Point]:
        """The runs, in their order."""
        combinations = itertools.product(*self.values.values())
        return [_point(dict(zip(self.values, combination, strict=True))) for combination in combinations]


def parse(words: Sequence[str], *, many: bool = False) -> Grid:
    """Words of the command line -> the grid.

    A word with one value is for all runs. Commas separate values, unless they stand in brackets or quotes, and `1..5`
    stands for whole numbers.

    Args:
        words: overrides with one value or several.
        many: whether more than 100 runs are meant.

    Raises:
        UsageError: a word is no override, a value is empty or there twice, or there are too many runs.

    >>> grid = parse(["trainer.steps=5", "trainer.learning_rate=1e-3,1e-2", "seed=1..2"])
    >>> grid.fixed, [point.name for point in grid.points()]
    (['trainer.steps=5'], ['learning_rate-0.001_seed-1', 'learning_rate-0.001_seed-2', \
'learning_rate-0.01_seed-1', 'learning_rate-0.01_seed-2'])
    """
    fixed: list[str] = []
    values: dict[str, list[str]] = {}
    keys: set[str] = set()
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not all(key.split(".")):
            raise UsageError(f"Expected key=value, key=a,b,c or key=1..5, got {shown(word)}.")
        if key == "run.dir":
            raise UsageError("Each run of a sweep has a folder of its own, so run.dir cannot be set. Use --dir.")
        if key in keys:
            raise UsageError(f"The key {key} is there twice. Give all its values at once, as in {key}=a,b.")
        keys.add(key)
        several = _values(key, text)
        if len(set(several)) < len(several):
            twice = next(value for value in several if several.count(value) > 1)
            raise UsageError(f"The value {twice} of {key} is there twice.")
        if len(several) == 1:
            fixed.append(f"{key}={several[0]}")
        else:
            values[key] = several
    sizes = [len(several) for several in values.values()]
    runs = math.prod(sizes)
    if runs > (MOST if many else FEW):
        arithmetic = f"{' x '.join(f'{size:,}' for size in sizes)} = " if len(sizes) > 1 else ""
        remedy = f"The most is {MOST:,}." if many or runs > MOST else "Add --yes if you mean that."
        raise UsageError(f"This sweep has {arithmetic}{counted(runs, 'run')}. {remedy}")
    return Grid(fixed=fixed, values=values)


def _values(key: str, text: str) -> list[str]:
    """The values of a word, as an override takes them."""
    parts = [part.strip() for part in _parts(text)]
    if not all(parts):
        where = "no value" if len(parts) == 1 else "an empty value between its commas"
        raise UsageError(f"{key} has {where}, got {shown(f'{key}={text}')}. Expected {key}=a,b,c or {key}=1..5.")
    values: list[str] = []
    for part in parts:
        values += _range(key, part) or [_canonical(key, part)]
    return values


def _range(key: str, text: str) -> list[str]:
    """The whole numbers of `1..5`; empty for another value."""
    match = _RANGE.fullmatch(text)
    if match is None:
        if _HALF_RANGE.fullmatch(text):
            raise UsageError(f"{key} has half a range, {shown(text)}. Expected two whole numbers, as in {key}=1..5.")
        return []
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise UsageError(f"The range {text} of {key} is empty: write the lower number first.")
    if last - first >= MOST:
        raise UsageError(
            f"The range {text} of {key} has {last - first + 1:,} values; a sweep has at most {MOST:,} runs."
        )
    return [str(number) for number in range(first, last + 1)]


def _canonical(key: str, text: str) -> str:
    """A value in one way of writing it, so that 1e-3 and 0.001 are the same."""
    try:
        value = parse_value(text)
    except yaml.YAMLError as error:
        raise UsageError(
            f"The value {shown(text)} of {key} is not YAML ({problem(error)}). Put quotes round a text with brackets, "
            "braces or a colon."
        ) from error
    plain_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return repr(value) if plain_number and math.isfinite(value) else text.strip()


def _parts(text: str) -> Iterator[str]:
    """The parts between commas that stand neither in brackets nor in quotes."""
    closing: list[str] = []
    start = 0
    for i, character in enumerate(text):
        if closing and character == closing[-1]:
            closing.pop()
        elif closing and closing[-1] in "'\"":
            continue
        elif character in _CLOSING:
            closing.append(_CLOSING[character])
        elif character in "'\"" and (i == start or text[i - 1] in " ,:[{"):  # not the one in "don't"
            closing.append(character)
        elif character == "," and not closing:
            yield text[start:i]
            start = i + 1
    yield text[start:]


def _point(values: dict[str, str]) -> Point:
    """A run with the name of its folder: the last parts of the keys with their values, where that is short."""
    ends = [key.rpartition(".")[2] for key in values]
    labels = [end if ends.count(end) == 1 else key for key, end in zip(values, ends, strict=True)]
    words = [f"{label}-{_slug(value)}" for label, value in zip(labels, values.values(), strict=True)]
    name = "_".join(words) or "run"
    if len(name) > 120:
        name = f"{name[:100]}-{_digest(json.dumps(values))}"
    return Point(values=values, name=name)


def _slug(value: str) -> str:
    """A value for a folder's name; one that is long or has other characters ends in a digest."""
    plain = re.sub(r"[^A-Za-z0-9.+-]+", "-", value).strip("-.")
    return value if plain == value and len(value) <= 40 else f"{plain[:24]}-{_digest(value)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:6]
