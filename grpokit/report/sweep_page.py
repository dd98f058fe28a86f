"""The page of a sweep: what each setting reached on held-out prompts, with intervals over the seeds.

The independent units are the seeds: a setting's mean is over the last evaluations of its runs, and its interval is
Student's t over them. Differences to the first setting are paired by seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from grpokit.errors import RunError, UsageError
from grpokit.evaluation.intervals import half_width
from grpokit.files import read_json, replacing
from grpokit.run_folder.names import REPORT
from grpokit.run_folder.reader import Run, read

SWEEP, PAGE = "sweep.json", "sweep.html"
PLANNED, FINISHED, FAILED, INTERRUPTED = "planned", "finished", "failed", "interrupted"
_STATES = FINISHED, FAILED, INTERRUPTED, PLANNED
_SEED = "seed"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: over the seeds.
        half_width: of its 95 % interval, by Student's t; NaN with one seed.
        seeds: how many.
    """

    mean: float
    half_width: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if math.isnan(self.half_width) else f"{self.mean:.3f} ± {self.half_width:.3f}"

    @property
    def change(self) -> str:
        """The words for a difference."""
        if math.isnan(self.half_width):
            return f"{self.mean:+.3f}"
        verdict = "" if abs(self.mean) > self.half_width else ", no clear difference"
        return f"{self.mean:+.3f} ± {self.half_width:.3f}{verdict}"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a setting reached in one score.

    Attributes:
        words: its overrides, without the seed.
        scores: of the last evaluation, by seed.
        reached: their mean; None where no run has finished.
        difference: to the first setting, over the seeds that both have; None for the first, and where there are none.
    """

    words: str
    scores: Mapping[str, float]
    reached: Estimate | None
    difference: Estimate | None


def read_plan(folder: Path) -> dict[str, Any]:
    """The plan in a sweep's folder.

    Raises:
        UsageError: there is none, or it is damaged.
    """
    path = folder / SWEEP
    if not path.is_file():
        raise UsageError(f"{folder} is not the folder of a sweep: it has no {SWEEP}.")
    try:
        plan: dict[str, Any] = read_json(path)
        runs = plan["runs"]
        texts = [run[key] for run in runs for key in ("folder", "state", "error")] + [plan["source"]]
        dictionaries = [run["values"] for run in runs]
        lists = [plan["fixed"], plan["keys"]]
    except (OSError, ValueError, KeyError, TypeError):
        texts, dictionaries, lists = [None], [], []
    kinds = ((texts, str), (dictionaries, dict), (lists, list))
    if not all(isinstance(value, kind) for values, kind in kinds for value in values):
        raise UsageError(f"{path} is damaged. Choose another folder with --dir, or delete this one.")
    return plan


def results(folder: Path) -> dict[str, list[Setting]]:
    """Score -> each setting's result, in the order of the sweep; "reward" comes first.

    Only finished runs count.

    Raises:
        UsageError: it is not the folder of a sweep.
    """
    return _results(read_plan(folder), _finished(folder))


def _results(plan: Mapping[str, Any], finished: Mapping[str, Run]) -> dict[str, list[Setting]]:
    last = {name: dict(run.evaluations[-1]) for name, run in finished.items() if run.evaluations}
    keys = dict.fromkeys(key for row in last.values() for key in row if f"{key}/ci95" in row)
    names = sorted(keys, key=lambda name: name != "reward")
    by_setting: dict[str, dict[str, str]] = {}  # words -> seed -> folder
    for run in plan["runs"]:
        words = " ".join(f"{key}={value}" for key, value in run["values"].items() if key != _SEED)
        by_setting.setdefault(words, {})[str(run["values"].get(_SEED, ""))] = run["folder"]
    tables: dict[str, list[Setting]] = {}
    for name in names:
        rows: list[Setting] = []
        for words, folders in by_setting.items():
            scores = {seed: last[own][name] for seed, own in folders.items() if last.get(own, {}).get(name) is not None}
            first = rows[0].scores if rows else {}
            differences = [score - first[seed] for seed, score in scores.items() if seed in first]
            rows.append(
                Setting(
                    words=words or "as it is",
                    scores=scores,
                    reached=_estimate(list(scores.values())),
                    difference=_estimate(differences),
                )
            )
        tables[name] = rows
    return tables


def write(folder: Path) -> Path:
    """Write `sweep.html` into the folder of a sweep, and return its path.

    Raises:
        UsageError: it is not the folder of a sweep.
        RunError: the page cannot be written.
    """
    plan, finished = read_plan(folder), _finished(folder)
    tables = _results(plan, finished)
    rows = [
        {
            **run,
            "words": " ".join(f"{key}={value}" for key, value in run["values"].items()),
            "steps": finished[run["folder"]].steps if run["folder"] in finished else None,
            "report": f"{quote(run['folder'])}/{REPORT}" if (folder / run["folder"] / REPORT).is_file() else None,
        }
        for run in plan["runs"]
    ]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("grpokit.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    content = environment.get_template("sweep.html").render(
        title=folder.resolve().name,
        plan=plan,
        runs=rows,
        counts={
            state: sum(run["state"] == state for run in rows) for state in (FINISHED, FAILED, INTERRUPTED, PLANNED)
        },
        tables={name: (_plots(settings), settings) for name, settings in tables.items()},
        several_seeds=_SEED in plan["keys"],
        same_mix=len({str(run.weights) for run in finished.values()}) < 2,
    )
    path = folder / PAGE
    try:
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}.") from error
    return path


def _finished(folder: Path) -> dict[str, Run]:
    return {
        run["folder"]: read(folder / run["folder"])
        for run in read_plan(folder)["runs"]
        if run["state"] == FINISHED and (folder / run["folder"] / "config.yaml").is_file()
    }


def _estimate(values: Sequence[float]) -> Estimate | None:
    if not values:
        return None
    width = half_width(values, range(len(values)))
    return Estimate(mean=math.fsum(values) / len(values), half_width=width, seeds=len(values))


def _plots(settings: Sequence[Setting]) -> dict[str, Any]:
    """For each setting the places of its mean, interval and seeds in percent of an axis that all settings share."""
    reached = [setting.reached for setting in settings if setting.reached]
    widths = [0.0 if math.isnan(estimate.half_width) else estimate.half_width for estimate in reached]
    means = [estimate.mean for estimate in reached]
    seeds = [score for setting in settings for score in setting.scores.values()]
    low = min([*seeds, *(mean - width for mean, width in zip(means, widths, strict=True))], default=0.0)
    high = max([*seeds, *(mean + width for mean, width in zip(means, widths, strict=True))], default=1.0)
    span = high - low or 1.0

    def place(value: float) -> float:
        return round(3 + 94 * (value - low) / span, 2)

    rows = []
    for setting in settings:
        own = setting.reached
        width = 0.0 if own is None or math.isnan(own.half_width) else own.half_width
        rows.append(
            own
            and {
                "mean": place(own.mean),
                "from": place(own.mean - width),
                "to": place(own.mean + width),
                "seeds": [place(score) for score in setting.scores.values()],
            }
        )
    return {"rows": rows, "low": f"{low:.3f}", "high": f"{high:.3f}"}
