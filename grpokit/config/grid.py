"""The grid of a sweep: words `key=a,b,c` and `seed=1..5` -> the overrides of each run, and a name for its folder."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from grpokit.config.overrides import key_value
from grpokit.config.yaml_source import to_yaml
from grpokit.errors import UsageError

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a sweep; `name` is its folder's, `setting` what differs between the runs besides the seed."""

    name: str
    overrides: Sequence[str]
    setting: str
    seed: str


def points(words: Sequence[str]) -> list[Point]:
    """The runs in their order; the last key changes fastest.

    Commas separate values as in a list of YAML, and `1..5` stands for whole numbers. A key with one value
    applies to every run.

    Raises:
        UsageError: a word's values are not a list, or it sets run.dir.

    >>> runs = points(["trainer.steps=5", "trainer.learning_rate=1e-3,1e-2", "seed=1..2"])
    >>> len(runs), runs[1].name
    (4, 'learning_rate-0.001_seed-2')
    """
    fixed: list[str] = []
    swept: dict[str, list[str]] = {}
    for word in words:
        key, sign, text = word.partition("=")
        if key == "run.dir":
            raise UsageError("Each run of a sweep has its own folder, so run.dir cannot be set. Use --dir.")
        values = _values(key, text) if "," in text or _RANGE.fullmatch(text) else [text]
        if len(values) > 1:
            swept[key] = values
        else:
            fixed.append(f"{key}{sign}{values[0]}")
    ends = [key.rpartition(".")[2] for key in swept]
    labels = {key: end if ends.count(end) == 1 else key for key, end in zip(swept, ends, strict=True)}
    runs = []
    for combination in itertools.product(*swept.values()):
        own = dict(zip(swept, combination, strict=True))
        name = "_".join(f"{labels[key]}-{_slug(value)}" for key, value in own.items()) or "run"
        overrides = [f"{key}={value}" for key, value in own.items()]
        setting = " ".join(f"{key}={value}" for key, value in own.items() if key != "seed")
        seed = own.get("seed", "")
        runs.append(Point(name=name, overrides=[*fixed, *overrides], setting=setting, seed=seed))
    return runs


def _values(key: str, text: str) -> list[str]:
    """The values of a word as overrides take them, each once."""
    values: list[str] = []
    for value in key_value(f"{key}=[{text}]")[1]:
        ends = _RANGE.fullmatch(str(value))
        if ends:
            first, last = int(ends[1]), int(ends[2])
            values += map(str, range(first, last + 1))
        else:
            values.append(to_yaml([value], inline=True).strip()[1:-1])
    return list(dict.fromkeys(values))


def _slug(value: str) -> str:
    """A value for a folder's name; one that is long or has other characters ends in a digest."""
    plain = re.sub(r"[^A-Za-z0-9.+-]+", "-", value).strip("-.")[:40]
    return value if plain == value else f"{plain[:24]}-{hashlib.sha256(value.encode()).hexdigest()[:6]}"
