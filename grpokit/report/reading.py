"""What a run folder holds, as plain records.

A run may still be going, or may have been killed: a torn last line, a missing picture and a missing file are normal
then. A damaged line before good ones is not, and is reported.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from grpokit.config import yaml_source
from grpokit.errors import ConfigError, one_line
from grpokit.files import check_run_folder, is_running, read_bytes, read_json, step_folders, step_name, step_number

ATTRIBUTION, MACHINE, END = "attribution.jsonl", "machine.json", "end.json"
_LONGEST = 256 * 2**20  # bytes of a file that a page takes in; no run writes so much
_LONGEST_HEADER = 2**20
_LARGEST, _LARGEST_WEIGHT = 1e100, 1e50  # no mean or variance of such numbers overflows; no run has larger ones
_WORDS = ("message", "phase")  # what is text in a row of a journal

State = Literal["running", "stopped", "failed", "finished"]
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
        return [pair for pair in step_folders(self.folder / kind) if _is_own(pair[1] / "samples.jsonl")]

    def scored(self, step: int) -> Scored | None:
        """All scores of the evaluation after `step`, or None where they were not kept."""
        try:
            return read_scores(_scores_file(self.folder, step))
        except (OSError, ValueError):  # a ValueError is in `damage`
            return None


def read(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        UsageError: it is not a run folder.
    """
    check_run_folder(folder)
    damage: list[str] = []
    config, versions = (_header(folder / name, damage) for name in ("config.yaml", "versions.json"))
    rows: dict[str, Rows] = {}
    for name in ("metrics.jsonl", "eval.jsonl", "warnings.jsonl", ATTRIBUTION):
        if _is_too_long(folder / name):
            rows[name] = []
            damage.append(f"{name} is longer than {_LONGEST // 2**20} MiB, so it is left out here.")
            continue
        rows[name], bad = (read_attributions if name == ATTRIBUTION else read_journal)(folder / name)
        if bad:
            damage.append(f"{name} has damaged lines, which are left out here: {listed(bad)}.")
    damage += _damaged_samples(folder)
    steps_of: dict[str, list[int]] = {}
    for row in rows["warnings.jsonl"]:
        steps_of.setdefault(str(row.get("message", "")), []).append(row["step"])
    settings, end = _parsed(config), _end(folder)
    return Run(
        folder=folder,
        config=config,
        settings=settings,
        versions=versions,
        metrics=rows["metrics.jsonl"],
        evaluations=rows["eval.jsonl"],
        warnings=list(steps_of.items()),
        damage=damage,
        attributions=rows[ATTRIBUTION],
        state=end.get("state", "running" if is_running(folder) else "stopped"),
        planned=end.get("planned", _planned(settings)),
        message=end.get("message", ""),
        last_row=(folder / "metrics.jsonl").stat().st_mtime if rows["metrics.jsonl"] else None,
    )


def _end(folder: Path) -> dict[str, Any]:
    """How a run ended; empty while it goes on, and where it was killed."""
    try:
        end = read_json(folder / END)
        known = end["state"] in get_args(State) and _is_step(end["planned"]) and isinstance(end["message"], str)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return dict(end) if known else {}


def _planned(settings: Mapping[str, Any]) -> int:
    """Steps that a config asks for; 0 where it does not say."""
    phases, rounds, trainer = (settings.get(name) for name in ("phases", "rounds", "trainer"))
    if phases and isinstance(phases, list) and isinstance(rounds, int):
        of_phases = [phase.get("steps") if isinstance(phase, dict) else None for phase in phases]
        return rounds * sum(steps for steps in of_phases if isinstance(steps, int))
    steps = trainer.get("steps") if isinstance(trainer, dict) else None
    return steps if isinstance(steps, int) else 0


def _header(path: Path, damage: list[str]) -> str:
    """The text of a file that a run begins with; empty where there is none, or one that no run has written."""
    try:
        return read_bytes(path, most=_LONGEST_HEADER, follow=False).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        damage.append(f"{path.name} is left out here: {one_line(error)}.")
        return ""


def _is_too_long(path: Path) -> bool:
    return _is_own(path) and path.stat().st_size > _LONGEST


def _is_own(path: Path) -> bool:
    """Whether a run wrote it there, and nobody a link to a file from elsewhere; the run folder itself may be a link."""
    of_step = step_number(path.parent.name) is not None
    return path.is_file() and not path.is_symlink() and not (of_step and path.parent.is_symlink())


def read_journal(path: Path) -> tuple[Rows, list[int]]:
    """Rows of a file that grows by one object with a "step" at a time, and the numbers of damaged or doubled lines.

    The last line does not count as damaged where it is torn, as a crash or a running training leaves it: without the
    line break at its end.
    """
    lines = list(_lines(path))
    bad = [number for number, row in lines if row is None or not _is_journal_row(row)]
    if path.name != "warnings.jsonl":  # where a step may have several
        first: dict[int, int] = {}
        good = [(number, row["step"]) for number, row in lines if row is not None and number not in bad]
        bad = sorted([*bad, *(number for number, step in good if first.setdefault(step, number) != number)])
    return [row for number, row in lines if row is not None and number not in bad], _whole_lines(path, lines, bad)


def read_attributions(path: Path) -> tuple[Rows, list[int]]:
    """As `read_journal`, for an `attribution.jsonl`, where a step may have several rows."""
    lines = list(_lines(path))
    bad = [number for number, row in lines if row is None or not _is_attribution(row)]
    return [row for number, row in lines if row is not None and number not in bad], _whole_lines(path, lines, bad)


def _whole_lines(path: Path, lines: Sequence[tuple[int, Row | None]], bad: Sequence[int]) -> list[int]:
    """The numbers of damaged lines, but for a last one that is torn."""
    cut_off = bool(lines) and lines[-1][1] is None and not path.read_bytes().endswith(b"\n")
    torn = lines[-1][0] if cut_off else 0
    return [number for number in bad if number != torn]


def read_samples(path: Path) -> tuple[Rows, list[int]]:
    """Rows of a `samples.jsonl`, and the numbers of damaged lines; the same file is read once."""
    try:
        stat = path.stat()
    except OSError:
        return [], []
    return _read_samples(path, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=512)
def _read_samples(path: Path, size: int, changed: int) -> tuple[Rows, list[int]]:
    if size > _LONGEST // 4:
        return [], [1]
    lines = list(_lines(path))
    bad = [number for number, row in lines if row is None or not _is_sample(row)]
    return [row for number, row in lines if row is not None and number not in bad], bad


def read_scores(path: Path) -> Scored:
    """Read a `scores.json`; the same file is read once.

    Raises:
        OSError: it does not exist.
        ValueError: it is not what a run writes; the message says what is wrong.
    """
    stat = path.stat()
    return _read_scores(path, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=512)
def _read_scores(path: Path, size: int, changed: int) -> Scored:
    if size > _LONGEST // 4:
        raise ValueError(f"it is longer than {_LONGEST // 4 // 2**20} MiB")
    content = read_json(path)
    if not isinstance(content, dict) or content.keys() != {"prompts", "prompt", "scores"}:
        raise ValueError("expected the keys prompts, prompt and scores")
    prompt, scores = content["prompt"], content["scores"]
    if not isinstance(content["prompts"], str) or not isinstance(prompt, list) or not isinstance(scores, dict):
        raise ValueError("expected a text, a list and lists by name")
    if not all(isinstance(index, int) and not isinstance(index, bool) for index in prompt):
        raise ValueError("expected whole numbers in prompt")
    for name, column in scores.items():
        if not isinstance(column, list) or len(column) != len(prompt) or not all(map(_is_score, column)):
            raise ValueError(f"expected {len(prompt)} numbers or nulls for {name}")
    return Scored(**content)


def _damaged_samples(folder: Path) -> Iterable[str]:
    """A sentence for each file of samples or scores that is not what a run writes."""
    for kind in ("samples", "groups"):
        for step, place in step_folders(folder / kind):
            _, bad = read_samples(place / "samples.jsonl")
            if bad:
                name = f"{kind}/{place.name}/samples.jsonl"
                yield f"{name} has damaged lines, which are left out here: {listed(bad)}."
            try:
                read_scores(_scores_file(folder, step)) if kind == "samples" else None
            except OSError:
                pass  # older runs have none
            except ValueError as error:
                line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
                yield (
                    f"{kind}/{place.name}/scores.json{line} is not what the run wrote ({one_line(error)}), so "
                    "intervals of changes from or to this step are wider."
                )


def _scores_file(folder: Path, step: int) -> Path:
    return folder / "samples" / step_name(step) / "scores.json"


def _is_score(value: Any) -> bool:
    """A number that can be reckoned with, or None for no score."""
    return value is None or _is_number(value, _LARGEST)


def _is_number(value: Any, largest: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= largest


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**10


def _is_journal_row(row: Row) -> bool:
    return _is_step(row.get("step")) and all(
        isinstance(value, str) if key in _WORDS else _is_score(value) for key, value in row.items()
    )


def _is_attribution(row: Row) -> bool:
    shares = row.get("shares")
    return (
        _is_step(row.get("step"))
        and all(isinstance(row.get(name), str) for name in ("row", "group"))
        and isinstance(shares, dict)
        and all(isinstance(own, dict) and _are_shares(own) for own in shares.values())
    )


def _are_shares(own: Mapping[str, Any]) -> bool:
    numbers = [own.get(name) for name in ("row", "group", "both", "variance", "prompts")]
    return all(number is not None and _is_score(number) and number >= 0 for number in numbers)


def _is_sample(row: Row) -> bool:
    scores = row.get("scores", {})
    return (
        isinstance(scores, dict)
        and all(map(_is_score, scores.values()))
        and all(_is_score(row.get(name)) for name in ("reward", "advantage"))
        and all(isinstance(row.get(name, ""), str) for name in ("prompt", "file", "source", "target", "place"))
    )


def _lines(path: Path) -> Iterable[tuple[int, Row | None]]:
    """(number, object) of each line that is not empty; None where it is not a JSON object."""
    if not _is_own(path):
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.split("\n"), 1):  # a text may hold other separators
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
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
            known = _is_number(weight, _LARGEST_WEIGHT)
            weights[next(n for n in names if n not in ("reward", "step", *weights))] = weight if known else 1.0
    return weights


def _parsed(text: str) -> dict[str, Any]:
    try:
        settings, _ = yaml_source.read(text, "config.yaml")
    except ConfigError:
        return {}
    return settings if isinstance(settings, dict) else {}
