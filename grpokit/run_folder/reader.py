"""What a run folder holds, as plain records.

A run may still be training, or may have been killed: a partial last line, a missing picture and a missing file are
normal then. Another damaged line is an error that names it, and so is a link: with a folder from elsewhere it could
show any file of this machine.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from grpokit import registry
from grpokit.config import yaml_source
from grpokit.errors import UsageError, one_line
from grpokit.evaluation.paired import ScoreTable
from grpokit.files import read_json, read_text, step_folders, step_name
from grpokit.registry.specs import RewardSpec
from grpokit.run_folder.lock import is_running
from grpokit.run_folder.names import (
    ATTRIBUTION,
    CHECKPOINTS,
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
from grpokit.run_folder.rows import ROW_MODELS, RunState
from grpokit.settings import numbered_names

_PROMPT = 3000  # characters

Row = Mapping[str, Any]
Rows = Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """A run folder, read once.

    Attributes:
        folder: where it is.
        config: the resolved config as text.
        settings: the same, parsed.
        versions: what took part, as text.
        metrics: a row for each step.
        evaluations: a row for each evaluation.
        warnings: (message, its steps), in the order of their first step.
        attributions: what moved the rewards after some steps.
        state: a run that was killed counts as stopped.
        planned: steps that it has to do.
        message: why it failed, or converged before its last step.
        last_row: when its last step was written, in seconds since 1970.
    """

    folder: Path
    config: str
    settings: Mapping[str, Any]
    versions: str
    metrics: Rows = ()
    evaluations: Rows = ()
    warnings: Sequence[tuple[str, Sequence[int]]] = ()
    attributions: Rows = ()
    state: RunState = "stopped"
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

    @cached_property
    def keys(self) -> list[str]:
        """The names of all metrics; a monitor may miss in a row, and each phase has its own."""
        return list(dict.fromkeys(key for row in self.metrics for key in row))

    @property
    def names(self) -> list[str]:
        """The rewards' names, in the order of the config."""
        means = [re.fullmatch("rewards/(.*)/mean", key, re.DOTALL) for key in self.keys]
        trained = [match[1] for match in means if match]
        if trained or not self.evaluations:
            return trained
        return [name for name in self.evaluations[-1]["means"] if name != "reward"]

    @cached_property
    def rewards(self) -> dict[str, Row]:
        """Name -> a reward as the config has it; of a name in several phases, the first."""
        rewards: dict[str, Row] = {}
        for part in (self.settings, *(self.settings.get("phases") or ())):
            rewards = {**_by_name(part.get("rewards") or ()), **rewards}
        return rewards

    @property
    def taught(self) -> bool:
        """Whether it is an evaluation of what training taught, with all the statistics that are installed."""
        return bool(self.settings.get("taught"))

    @cached_property
    def statistics(self) -> dict[str, tuple[str, str]]:
        """Name -> the words for a lower and a higher score, of the rewards that describe and do not judge."""
        words = {}
        for name, reward in self.rewards.items():
            for _, spec in registry.named("reward", reward["use"]):
                if isinstance(spec, RewardSpec) and spec.statistic:
                    words[name] = spec.statistic
        return words

    @cached_property
    def weights(self) -> dict[str, float]:
        """Name -> weight, of "reward" (the weighted sum) and of the rewards.

        There is no sum of none, or of one with the weight 1. The many statistics of an evaluation of what was taught
        are left out.
        """
        weights = {}
        for name in self.names:
            weight = self.rewards.get(name, {}).get("weight", 1.0)
            if weight or not self.taught or name not in self.statistics:
                weights[name] = weight
        trained = [weight for weight in weights.values() if weight]
        if trained in ([], [1.0]):
            return weights
        return {"reward": 1.0, **weights}

    @property
    def checkpoints(self) -> list[tuple[int, Path]]:
        """(step, folder) of all checkpoints, in the order of the steps."""
        return step_folders(self.folder / CHECKPOINTS)

    def sample_folders(self, kind: str) -> list[tuple[int, Path]]:
        """(step, folder) of all whole folders of "samples" or "groups", in the order of the steps."""
        folders = step_folders(self.folder / kind)
        return [(step, place) for step, place in folders if (place / ROWS).is_file()]

    def label(self, step: int) -> str:
        """What a page calls the evaluation after `step`."""
        titles = [row["title"] for row in self.evaluations if row["step"] == step and row.get("title")]
        return titles[0] if titles else f"step {step}"

    def scored(self, step: int, kind: Literal["samples", "groups"] = "samples") -> ScoreTable | None:
        """All scores of the evaluation after `step`, or of its groups drawn as in training; None without any."""
        rows = read_rows(self.folder / kind / step_name(step) / SCORES)
        return ScoreTable.model_construct(**rows[0]) if rows else None


def read_run(folder: Path) -> RunHistory:
    """Read a run folder.

    Raises:
        UsageError: it is not a run folder, a file is a link, or a line of one is damaged.
    """
    check_run_folder(folder)
    _refuse_links(folder)
    metrics = read_rows(folder / METRICS)
    end = read_rows(folder / END)
    versions = folder / VERSIONS
    steps_of: dict[str, list[int]] = {}
    for row in read_rows(folder / WARNINGS):
        steps_of.setdefault(row["message"], []).append(row["step"])
    config = read_text(folder / CONFIG, kind="config", error=UsageError)
    settings, *_ = yaml_source.read_yaml(config, str(folder / CONFIG))
    settings = _checked(folder / CONFIG, settings)
    state = "running" if is_running(folder) else "stopped"  # where it has no end: it goes on, or was killed
    return RunHistory(
        folder=folder,
        config=config,
        settings=settings,
        versions=versions.read_text(encoding="utf-8", errors="replace") if versions.is_file() else "",
        metrics=metrics,
        evaluations=read_rows(folder / EVALUATIONS),
        warnings=list(steps_of.items()),
        attributions=read_rows(folder / ATTRIBUTION),
        last_row=(folder / METRICS).stat().st_mtime if metrics else None,
        **(end[0] if end else {"state": state, "planned": _planned(settings)}),
    )


def _refuse_links(folder: Path) -> None:
    places = [folder / name for name in (CONFIG, VERSIONS, METRICS, EVALUATIONS, WARNINGS, ATTRIBUTION, END)]
    for kind in (SAMPLES, GROUPS):
        places.append(folder / kind)
        for _, place in step_folders(folder / kind):
            places += [place, place / ROWS, place / SCORES]
    for place in places:
        if place.is_symlink():
            raise UsageError(f"{place} is a link, and a run has none. Put there what it leads to, or delete it.")


def _planned(settings: Mapping[str, Any]) -> int:
    """Steps that a config asks for."""
    phases = settings.get("phases")
    if not phases:
        return int(settings.get("trainer", {}).get("steps", 0))
    round_steps = sum(phase["steps"] for phase in phases)
    return int(settings.get("rounds", 1) * round_steps)


def read_rows(path: Path) -> Rows:
    """The rows of a file with one JSON object a line; none without the file.

    A partial last line, as a kill or a running training leaves it, is left out.

    Raises:
        UsageError: another line is damaged.
    """
    if not path.exists():
        return []
    if not path.is_file():
        raise _damaged(path, "", "it is not a regular file")
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            if line:
                rows.append(_checked(path, json.loads(line), f", line {number},"))
        except (ValueError, RecursionError) as error:
            if number < len(lines):
                raise _damaged(path, f", line {number},", one_line(error)) from error
    return rows


def read_object(path: Path) -> dict[str, Any]:
    """What a file with one JSON object holds.

    Raises:
        UsageError: it is missing or damaged.
    """
    try:
        content: dict[str, Any] = _checked(path, read_json(path))
    except (OSError, ValueError) as error:
        raise _damaged(path, "", one_line(error)) from error
    return content


def _checked(path: Path, row: Any, line: str = "") -> Any:
    """The same row, if it is what the file is made of."""
    try:
        ROW_MODELS[path.name].model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise _damaged(path, line, f"{place}: {first['msg']}" if place else first["msg"]) from error
    return row


def _damaged(path: Path, line: str, why: str) -> UsageError:
    return UsageError(f"{path}{line} is damaged: {why}. Put the file back from a copy, or take the damage out.")


def turns(prompts: Iterable[Hashable]) -> list[int]:
    """For each sample, how many of the same prompt come before it.

    >>> turns(["a", "b", "a"])
    [0, 0, 1]
    """
    counts: Counter[Hashable] = Counter()
    numbers = []
    for prompt in prompts:
        numbers.append(counts[prompt])
        counts[prompt] += 1
    return numbers


def shorten_prompt(prompt: str) -> str:
    """A prompt that fits a page: of a long one both ends, since long prompts often differ in one of them only."""
    return prompt if len(prompt) <= _PROMPT else f"{prompt[: _PROMPT // 2]} … {prompt[-_PROMPT // 2 :]}"


def _by_name(rewards: Iterable[Row]) -> dict[str, Row]:
    """The config's rewards by the names that training gives them."""
    rewards = list(rewards)
    names = numbered_names(reward.get("name") or reward["use"].rpartition(":")[2] for reward in rewards)
    return dict(zip(names, rewards, strict=True))
