"""What a run folder holds, as plain records.

A run may still be going, or may have been killed: a torn last line, a missing picture and a missing file are normal
then. A damaged line before good ones is not, and is reported.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pydantic import ValidationError

from grpokit.config import yaml_source
from grpokit.errors import ConfigError, one_line
from grpokit.files import read_bytes, step_folders, step_name
from grpokit.run_folder.lock import is_running
from grpokit.run_folder.names import (
    ATTRIBUTION,
    CONFIG,
    END,
    EVALUATIONS,
    GROUPS,
    METRICS,
    ROWS,
    SAMPLES,
    SCORES,
    VERSIONS,
    WARNINGS,
    check_run_folder,
)
from grpokit.run_folder.rows import KINDS, End, Scores, State

_LONGEST = 256 * 2**20  # bytes of a file that a page takes in; no run writes so much
_LARGEST_WEIGHT = 1e50
T = TypeVar("T")
FileState: TypeAlias = "tuple[int, int] | None"  # size and time of the last change

Row = Mapping[str, Any]
Rows = Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder, read once.

    Attributes:
        folder: where it is.
        config: the resolved config as text.
        settings: the same, parsed; empty where it is not YAML.
        versions: what took part, as text.
        metrics: a row for each step.
        evaluations: a row for each evaluation.
        warnings: (message, its steps), in the order of their first step.
        damage: a sentence for each file with damaged lines.
        attributions: what moved the rewards after some steps.
        state: a run that was killed counts as stopped.
        planned: steps that it has to do; 0 where neither its end nor the config says.
        message: why it failed, or converged before its last step.
        last_row: when its last step was written, in seconds since 1970.
    """

    folder: Path
    config: str
    settings: Mapping[str, Any]
    versions: str
    metrics: Rows
    evaluations: Rows
    warnings: Sequence[tuple[str, Sequence[int]]]
    damage: Sequence[str]
    attributions: Rows = ()
    state: State = "stopped"
    planned: int = 0
    message: str = ""
    last_row: float | None = None

    @property
    def title(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    @property
    def steps(self) -> int:
        """Steps done."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def stretches(self) -> list[tuple[str, int, int]]:
        """Phase, first and last step of consecutive steps in one phase; none where the run has no phases."""
        stretches: list[tuple[str, int, int]] = []
        for row in self.metrics:
            phase, step = row.get("phase"), row["step"]
            if phase and stretches and stretches[-1][0] == phase:
                stretches[-1] = (phase, stretches[-1][1], step)
            elif phase:
                stretches.append((phase, step, step))
        return stretches

    @property
    def keys(self) -> list[str]:
        """The names of all metrics; a monitor may miss in a row, and each phase has its own."""
        ends = {step for _, *steps in self.stretches for step in steps}
        rows = [*self.metrics[:1], *(row for row in self.metrics if row["step"] in ends), *self.metrics[-1:]]
        return list(dict.fromkeys(key for row in rows for key in row))

    @property
    def names(self) -> list[str]:
        """The rewards' names, in the order of the config."""
        names = list(dict.fromkeys(m.group(1) for key in self.keys if (m := re.fullmatch(r"rewards/(.+)/mean", key))))
        evaluation = self.evaluations[-1] if self.evaluations else {}
        return names or [key for key in evaluation if key not in ("step", "reward") and not key.endswith("/ci95")]

    @property
    def weights(self) -> dict[str, float]:
        """Name -> weight, of "reward" (the weighted sum) and of the rewards; no sum of one with the weight 1."""
        phases = self.settings.get("phases")
        of_config: dict[str, float] = {}
        for part in (self.settings, *(phases if isinstance(phases, list) else [])):
            of_config = {**_weights(part.get("rewards") if isinstance(part, dict) else None), **of_config}
        weights = {name: of_config.get(name, 1.0) for name in self.names}
        return weights if [w for w in weights.values() if w] == [1.0] else {"reward": 1.0, **weights}

    def sample_folders(self, kind: str) -> list[tuple[int, Path]]:
        """(step, folder) of all whole folders of "samples" or "groups", in the order of the steps."""
        return [(step, place) for step, place in step_folders(self.folder / kind) if _is_own(place / ROWS)]

    def scored(self, step: int) -> Scores | None:
        """All scores of the evaluation after `step`, or None where they were not kept or are damaged."""
        try:
            return read_scores(self.folder / SAMPLES / step_name(step) / SCORES)
        except (OSError, ValueError):
            return None


def read(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        UsageError: it is not a run folder.
    """
    check_run_folder(folder)
    rows: dict[str, Rows] = {}
    damage: list[str] = []
    for name in (METRICS, EVALUATIONS, WARNINGS, ATTRIBUTION):
        rows[name], problem = _shown_rows(folder / name)
        damage += [f"{name} {problem}. The rest is shown."] if problem else []
    damage += _damaged_samples(folder)
    steps_of: dict[str, list[int]] = {}
    for row in rows[WARNINGS]:
        steps_of.setdefault(row["message"], []).append(row["step"])
    config, versions = (_content(folder / name).decode(errors="replace") for name in (CONFIG, VERSIONS))
    settings = _parsed(config)
    try:
        end: End | None = End.model_validate_json(_content(folder / END))
    except ValidationError:  # while it goes on, and where it was killed
        end = None
    return Run(
        folder=folder,
        config=config,
        settings=settings,
        versions=versions,
        metrics=rows[METRICS],
        evaluations=rows[EVALUATIONS],
        warnings=list(steps_of.items()),
        damage=damage,
        attributions=rows[ATTRIBUTION],
        state=end.state if end else "running" if is_running(folder) else "stopped",
        planned=end.planned if end else _planned(settings),
        message=end.message if end else "",
        last_row=(folder / METRICS).stat().st_mtime if rows[METRICS] else None,
    )


def _planned(settings: Mapping[str, Any]) -> int:
    """Steps that a config asks for; 0 where it does not say."""
    phases, rounds, trainer = (settings.get(name) for name in ("phases", "rounds", "trainer"))
    if phases and isinstance(phases, list) and isinstance(rounds, int):
        of_phases = [phase.get("steps") if isinstance(phase, dict) else None for phase in phases]
        return rounds * sum(steps for steps in of_phases if isinstance(steps, int))
    steps = trainer.get("steps") if isinstance(trainer, dict) else None
    return steps if isinstance(steps, int) else 0


def _content(path: Path) -> bytes:
    """What a run has written into a file; empty where there is none, or another thing, such as a link or a pipe."""
    try:
        return read_bytes(path, most=_LONGEST, follow=False)
    except OSError:
        return b""


def _is_own(path: Path) -> bool:
    """Whether a run wrote a file of a step there, and nobody a link to another place."""
    return path.is_file() and not path.is_symlink() and not path.parent.is_symlink()


def read_rows(path: Path, *, most: int = 2**30) -> tuple[Rows, str]:
    """The rows of a file with one JSON object a line, and what is wrong with it, such as "has damaged lines: 2, 7-9".

    A torn last line, as a crash or a running training leaves it, is not wrong.

    Raises:
        OSError: it cannot be read, or has more bytes than `most`.
    """
    rows: list[Row] = []
    bad: list[int] = []
    try:
        content = read_bytes(path, most=most, follow=False)
    except FileNotFoundError:
        return [], ""
    lines = content.decode(errors="replace").split("\n")  # a text may hold other separators
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
                KINDS[path.name].model_validate(row)
                rows.append(row)
            except (ValueError, RecursionError):
                if number < len(lines):
                    bad.append(number)
    return rows, f"has damaged lines: {listed(bad)}" if bad else ""


def _shown_rows(path: Path) -> tuple[Rows, str]:
    try:
        return read_rows(path, most=_LONGEST)
    except OSError as error:
        return [], f"cannot be read ({one_line(error)})"


def read_samples(path: Path) -> tuple[Rows, str]:
    """As `read_rows`, for a `samples.jsonl`; the same file is read once."""
    return _once(_samples, path) if _is_own(path) else ([], "")


def read_scores(path: Path) -> Scores:
    """Read a `scores.json`; the same file is read once.

    Raises:
        OSError: it does not exist.
        ValueError: it is not what a run writes; the message says what is wrong.
    """
    return _once(_scores, path)


def _once(read: Callable[[Path, FileState], T], path: Path) -> T:
    try:
        stat = path.stat()
    except OSError:
        return read(path, None)
    return read(path, (stat.st_size, stat.st_mtime_ns))


@functools.lru_cache(maxsize=512)
def _samples(path: Path, state: FileState) -> tuple[Rows, str]:
    return _shown_rows(path)


@functools.lru_cache(maxsize=512)
def _scores(path: Path, state: FileState) -> Scores:
    return Scores.model_validate_json(read_bytes(path, most=_LONGEST, follow=False))


def _damaged_samples(folder: Path) -> Iterable[str]:
    """A sentence for each file of samples or scores that is not what a run writes."""
    for kind in (SAMPLES, GROUPS):
        for _, place in step_folders(folder / kind):
            _, problem = read_samples(place / ROWS)
            if problem:
                yield f"{kind}/{place.name}/{ROWS} {problem}. The rest is shown."
            try:
                read_scores(place / SCORES) if kind == SAMPLES else None
            except OSError:
                pass  # groups and older runs have none
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"]))
                yield (
                    f"{kind}/{place.name}/{SCORES} is not what the run wrote ({where and f'{where}: '}"
                    f"{first['msg']}), so intervals of changes from or to this step are wider."
                )


def kept(prompts: Sequence[int], most: int) -> list[int]:
    """Which `most` samples of an evaluation a run keeps: every prompt's first one comes before any prompt's second.

    Args:
        prompts: [B], what stands for each sample's prompt.
        most: the number of samples.

    >>> kept([7, 7, 7, 8, 8], 3)
    [0, 1, 3]
    """
    counts: Counter[int] = Counter()
    turns = []  # of each sample, among its prompt's
    for prompt in prompts:
        turns.append(counts[prompt])
        counts[prompt] += 1
    return sorted(sorted(range(len(turns)), key=turns.__getitem__)[:most])


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
    text = ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in ranges[:most])
    rest = sum(map(len, ranges[most:]))
    return f"{text} and {rest} more" if rest else text


def _weights(rewards: Any) -> dict[str, float]:
    """Name -> weight of the config's rewards, with the numbers that training gives to names that come twice."""
    weights: dict[str, float] = {}
    for reward in rewards if isinstance(rewards, list) else []:
        if isinstance(reward, dict):
            name = str(reward.get("name") or str(reward.get("use")).rpartition(":")[2])
            names = [name, *(f"{name}-{i}" for i in range(2, len(rewards) + 2))]
            weight = reward.get("weight", 1.0)
            known = type(weight) in (int, float) and abs(weight) <= _LARGEST_WEIGHT
            weights[next(n for n in names if n not in ("reward", "step", *weights))] = weight if known else 1.0
    return weights


def _parsed(text: str) -> dict[str, Any]:
    try:
        settings, _ = yaml_source.read(text, CONFIG)
    except ConfigError:
        return {}
    return settings if isinstance(settings, dict) else {}
