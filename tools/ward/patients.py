"""The cases of the ward, as a TOML file lists them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

FILE = Path(__file__).parent / "patients.toml"


@dataclass(frozen=True, kw_only=True)
class Base:
    """A healthy run.

    Attributes:
        name: of the run, and of its folder.
        preset: what it trains.
        overrides: `key=value` texts; with none, the preset as it is.
    """

    name: str
    preset: str
    overrides: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A sick run.

    Attributes:
        name: of the case, and of its run's folder.
        base: the healthy run.
        sick: overrides that make it sick.
        cause: the id of the right cause.
        symptom: what is seen: flat, falling, collapsed, or in more words.
        cure: overrides that stand for a remedy that no key of the config is, such as a better reward.
        score: by which the run is judged: a reward's name, or "reward" for the weighted sum.
        healed: "better": the score's change is clearly better than the sick run's. "seen": it is above its interval.
        note: what is worth knowing.
    """

    name: str
    base: Base
    sick: Sequence[str]
    cause: str
    symptom: str
    cure: Sequence[str] = ()
    score: str = "reward"
    healed: Literal["better", "seen"] = "better"
    note: str = ""

    @property
    def healthy(self) -> Base:
        """The base's run."""
        return replace(self.base, name=f"base-{self.base.name}")

    @property
    def run(self) -> Base:
        """What the sick run trains."""
        return replace(self.base, name=self.name, overrides=[*self.base.overrides, *self.sick])


@dataclass(frozen=True, kw_only=True)
class Patients:
    """All cases, and the healthy runs of which nothing should be said."""

    cases: Sequence[Case]
    healthy: Sequence[Base] = ()

    def named(self, words: Sequence[str]) -> Sequence[Case]:
        """The cases whose name or cause holds one of the words; all, where there is none."""
        return [case for case in self.cases if not words or any(word in f"{case.name} {case.cause}" for word in words)]


def read(file: Path = FILE) -> Patients:
    """The cases of a file."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    bases = {entry["name"]: Base(**entry) for entry in content["base"]}
    cases = [Case(**{**entry, "base": bases[entry["base"]]}) for entry in content["case"]]
    healthy = [Base(name=preset, preset=preset) for preset in content.get("healthy", [])]
    return Patients(cases=cases, healthy=healthy)
