"""A sweep: the runs of a grid in turn, in one folder that also holds the plan and a page that compares them.

Each run is an ordinary run folder. `sweep.json` says which runs there are and how each of them ended, so the same
command skips what is finished and resumes what is not. A run that fails does not stop the others.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpokit.config import presets
from grpokit.config.grid import Grid
from grpokit.config.schema import RunConfig
from grpokit.errors import GrpokitError, UsageError, typed_line
from grpokit.files import write_text
from grpokit.report import sweep_page
from grpokit.report.sweep_page import FAILED, FINISHED, INTERRUPTED, PLANNED, SWEEP
from grpokit.run_folder.lock import locked
from grpokit.run_folder.names import CONFIG
from grpokit.runs import build, resuming
from grpokit.runs import train as training


@dataclass(frozen=True, kw_only=True)
class Swept:
    """How a sweep ended.

    Attributes:
        page: the page that compares the runs.
        failed: folder's name -> the error, of the runs that failed.
        interrupted: it was stopped by Ctrl-C, and the same command goes on.
    """

    page: Path
    failed: Mapping[str, str]
    interrupted: bool


def sweep(
    source: str,
    grid: Grid,
    *,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    watching: Callable[[], AbstractContextManager[training.Watcher]] = lambda: nullcontext(training.Watcher()),
) -> Swept:
    """Train the runs of a grid that are not finished yet, and write the page that compares all runs in the folder.

    Args:
        source: a preset, or a config file.
        grid: what differs between the runs, from `grpokit.config.grid.parse`.
        folder: of the sweep; by default sweeps/<name of the source>.
        say: gets a line before each run, and one where a run fails.
        watching: gives the callbacks for the progress of a run.

    Raises:
        UsageError: a config is wrong, or the folder holds something else. Nothing was trained then.
    """
    points = grid.points()
    configs: dict[str, RunConfig] = {}
    name = ""
    for point in points:  # all of them, so that the last run's mistake does not wait for the others
        configs[point.name], name = presets.read_config(source, [*grid.fixed, *_overrides(point.values)])
        build.check_known(configs[point.name])
    folder = folder or Path("sweeps") / name
    with locked(folder):
        plan = _plan(folder, source, grid)
        runs = {run["folder"]: run for run in plan["runs"]}
        finished = [
            point.name
            for point in points
            if runs[point.name]["state"] == FINISHED and (folder / point.name / CONFIG).is_file()
        ]
        for own in finished:
            for line in _same(folder / own, configs[own]):
                say(f"warning: {line}")
        write_text(folder / SWEEP, json.dumps(plan, indent=1) + "\n")
        interrupted = False
        for number, point in enumerate(points, 1):
            run = runs[point.name]
            place = folder / point.name
            if point.name in finished:
                say(f"[{number}/{len(points)}] {place} is finished")
                continue
            say(f"[{number}/{len(points)}] {' '.join([*grid.fixed, *_overrides(point.values)])} -> {place}")
            config = configs[point.name]
            config.run.dir = str(place)
            run |= _train(config, place, watching)
            write_text(folder / SWEEP, json.dumps(plan, indent=1) + "\n")
            sweep_page.write(folder)
            if run["error"]:
                say(f"failed: {run['error']}")
            if run["state"] == INTERRUPTED:
                interrupted = True
                break
            gc.collect()  # the models of this run, before the next one needs the room
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        failed = {point.name: str(runs[point.name]["error"]) for point in points if runs[point.name]["error"]}
        return Swept(page=sweep_page.write(folder), failed=failed, interrupted=interrupted)


def _same(place: Path, config: RunConfig) -> list[str]:
    """Make sure that a finished run would still be trained as it was, since others are compared with it.

    Returns:
        A warning where versions, or code that the config names, have changed.

    Raises:
        UsageError: its config or its prompts have changed.
    """
    prompts, held_out = build.prompts(config)
    sequences = {"train": prompts, "held_out": held_out}
    prompt_changes, unknown = resuming.changed_prompts(place, resuming.digests(prompts, held_out), sequences)
    changes = [*resuming.changed_config(place, config), *prompt_changes.values(), *unknown]
    if changes:
        raise UsageError(
            f"The finished run {place} cannot be compared with those to come:\n"
            + "".join(f"  {line}\n" for line in changes)
            + "Go back to what it was started with, or choose another folder with --dir."
        )
    return resuming.changed_versions(place, config)


def _train(
    config: RunConfig, place: Path, watching: Callable[[], AbstractContextManager[training.Watcher]]
) -> dict[str, Any]:
    """Train a run, or go on with it; returns its state for the plan."""
    try:
        with watching() as watcher:
            result = training.train(config, resume=True, watcher=watcher)
    except GrpokitError as error:
        return {"state": FAILED, "error": str(error)}
    except Exception as error:  # a bug, in a plugin perhaps: the other runs may be well
        return {"state": FAILED, "error": typed_line(error)}
    return {"state": INTERRUPTED if result.interrupted else FINISHED, "error": ""}


def _overrides(values: Mapping[str, str]) -> Sequence[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _plan(folder: Path, source: str, grid: Grid) -> dict[str, Any]:
    """The plan in the folder with the runs of the grid added, or a new one.

    Raises:
        UsageError: the folder is in use for something else.
    """
    plan: dict[str, Any] = {"source": source, "fixed": list(grid.fixed), "keys": list(grid.values), "runs": []}
    if (folder / SWEEP).is_file():
        before = sweep_page.read_plan(folder)
        other = next((key for key in ("source", "fixed", "keys") if before[key] != plan[key]), None)
        if other:
            words = {"source": "of", "fixed": "with the settings", "keys": "over"}[other]
            theirs = before[other] if isinstance(before[other], str) else " ".join(before[other]) or "nothing"
            raise UsageError(
                f"{folder} holds another sweep, {words} {theirs}. More values of the same keys can be added to a "
                "sweep; for anything else choose another folder with --dir."
            )
        plan = before
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is in use, and not by a sweep (it has no {SWEEP}). Choose another with --dir.")
    known = {run["folder"] for run in plan["runs"]}
    plan["runs"] += [
        {"folder": point.name, "values": point.values, "state": PLANNED, "error": ""}
        for point in grid.points()
        if point.name not in known
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"The folder {folder} of the sweep cannot be made: {error}.") from error
    return plan
