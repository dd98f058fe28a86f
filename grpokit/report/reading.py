"""What a run folder holds, as plain records.

A run may still be going, or may have been killed: a torn last line, a picture that is not there yet and a file that
was never written are ordinary. A damaged line with good ones after it is not, and is reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grpokit.errors import UsageError

Row = Mapping[str, Any]
Rows = Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """All scores of one evaluation.

    Attributes:
        prompts: a digest of the prompts; equal where two evaluations had the same ones.
        prompt: [B], which prompt each sample was drawn for, from 0.
        scores: name -> [B], None where a reward could not score.
    """

    prompts: str
    prompt: Sequence[int]
    scores: Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder, read once.

    Attributes:
        folder: where it is.
        config: the resolved config as text.
        settings: the same, parsed; empty where it is no YAML.
        versions: what took part, as text.
        metrics: a row for each step.
        evaluations: a row for each evaluation.
        warnings: (message, the steps at which it came), in the order of their first step.
        damage: a sentence for each file with damaged lines.
    """

    folder: Path
    config: str
    settings: Mapping[str, Any]
    versions: str
    metrics: Rows
    evaluations: Rows
    warnings: Sequence[tuple[str, Sequence[int]]]
    damage: Sequence[str]

    @property
    def title(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    @property
    def steps(self) -> int:
        """Steps done."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def planned(self) -> int:
        """Steps that the config asks for; 0 where that cannot be told."""
        trainer = self.settings.get("trainer")
        steps = trainer.get("steps") if isinstance(trainer, dict) else None
        return steps if isinstance(steps, int) else 0

    @property
    def names(self) -> list[str]:
        """The rewards' names, in the order of the config."""
        ends = [key for row in (*self.metrics[:1], *self.metrics[-1:]) for key in row]  # a monitor may miss the last
        named = list(dict.fromkeys(m.group(1) for key in ends if (m := re.fullmatch(r"rewards/(.+)/mean", key))))
        scored = self.evaluations[-1] if self.evaluations else {}
        return named or [key for key in scored if key not in ("step", "reward") and not key.endswith("/ci95")]

    @property
    def weights(self) -> dict[str, float]:
        """Name -> weight, of "reward" (the weighted sum) and of the rewards; no sum of one with the weight 1."""
        given = _weights(self.settings.get("rewards"))
        weights = {name: given.get(name, 1.0) for name in self.names}
        return weights if [w for w in weights.values() if w] == [1.0] else {"reward": 1.0, **weights}

    def sample_folders(self, kind: str) -> list[tuple[int, Path]]:
        """(step, folder) of all whole folders of "samples" or "groups", in the order of the steps."""
        return sorted(
            (int(place.name.removeprefix("step_")), place)
            for place in (self.folder / kind).glob("step_*")
            if place.name.removeprefix("step_").isdecimal() and (place / "samples.jsonl").is_file()
        )

    def scored(self, step: int) -> Scored | None:
        """All scores of the evaluation after `step`, or None where they were not kept."""
        path = self.folder / "samples" / f"step_{step:06d}" / "scores.json"
        try:
            return Scored(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


def read(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        UsageError: it is none.
    """
    if not (folder / "config.yaml").is_file():
        raise UsageError(f"{folder} is no run folder: it has no config.yaml.")
    config = (folder / "config.yaml").read_text(encoding="utf-8", errors="replace")
    versions = folder / "versions.json"
    damage, found = [], {}
    for name in ("metrics.jsonl", "eval.jsonl", "warnings.jsonl"):
        found[name], bad = read_journal(folder / name)
        if bad:
            damage.append(f"{name} holds lines that are no rows, which are left out here: {listed(bad)}.")
    steps_of: dict[str, list[int]] = {}
    for row in found["warnings.jsonl"]:
        steps_of.setdefault(str(row.get("message", "")), []).append(row["step"])
    return Run(
        folder=folder,
        config=config,
        settings=_parsed(config),
        versions=versions.read_text(encoding="utf-8", errors="replace") if versions.is_file() else "",
        metrics=found["metrics.jsonl"],
        evaluations=found["eval.jsonl"],
        warnings=list(steps_of.items()),
        damage=damage,
    )


def read_rows(path: Path) -> Rows:
    """The objects of a JSON-lines file of a run, without lines that hold none."""
    return [row for _, row in _lines(path) if row is not None]


def read_journal(path: Path) -> tuple[Rows, list[int]]:
    """Rows of a file that grows by one object with a "step" at a time, and the numbers of damaged lines.

    The last line does not count as damaged where it is torn, as a crash or a running training leaves it.
    """
    lines = list(_lines(path))
    whole = [(n, row if row is not None and isinstance(row.get("step"), int) else None) for n, row in lines]
    bad = [n for n, row in whole if row is None]
    last = lines[-1][0] if lines else 0
    return [row for _, row in whole if row is not None], [n for n in bad if n != last]


def _lines(path: Path) -> Iterable[tuple[int, Row | None]]:
    """(number, object) of each line that is not empty; None for what is no object."""
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.split("\n"), 1):  # a text may hold other separators
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            yield number, row if isinstance(row, dict) else None


def listed(numbers: Iterable[int], *, most: int = 8) -> str:
    """Numbers as ranges, for a person.

    >>> listed([7, 1, 2, 3, 9])
    '1-3, 7, 9'
    >>> listed(range(1, 40, 2), most=3)
    '1, 3, 5 and 17 more'
    """
    ordered = sorted(set(numbers))
    ranges: list[list[int]] = []
    for n in ordered:
        if ranges and ranges[-1][-1] == n - 1:
            ranges[-1].append(n)
        else:
            ranges.append([n])
    shown = ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in ranges[:most])
    rest = sum(map(len, ranges[most:]))
    return f"{shown} and {rest} more" if rest else shown


def _weights(rewards: Any) -> dict[str, float]:
    """Name -> weight of the config's rewards, with the numbers that training gives to names that come twice."""
    weights: dict[str, float] = {}
    for reward in rewards if isinstance(rewards, list) else []:
        if isinstance(reward, dict):
            name = str(reward.get("name") or str(reward.get("use")).rpartition(":")[2])
            names = [name, *(f"{name}-{i}" for i in range(2, len(rewards) + 2))]
            weights[next(n for n in names if n not in ("reward", "step", *weights))] = reward.get("weight", 1.0)
    return weights


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}
