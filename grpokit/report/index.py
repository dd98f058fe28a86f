"""A folder of runs as a page: a row for each run, which leads to its report.

It looks for runs in the folder itself and in the folders of sweeps in it, and no deeper. A run that cannot be read has
a row that says why, so that one damaged file does not hide the other runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from grpokit.errors import RunError, UsageError, one_line
from grpokit.report.page import page, page_file, write, write_whole
from grpokit.report.view import outcome
from grpokit.run_folder.names import ATTRIBUTION, CONFIG, END, EVALUATIONS, METRICS, REPORT, WARNINGS
from grpokit.run_folder.reader import read_run

INDEX = "index.html"
_NEWS = (METRICS, EVALUATIONS, WARNINGS, ATTRIBUTION, END)  # after which a report is out of date


def runs_in(folder: Path) -> dict[str, Path]:
    """Name -> run folder, of the runs in a folder and in the sweeps in it; none where it is a run itself.

    The name of a run in a sweep has the sweep's in front, as in `rates/seed-1`.
    """
    if _is_run(folder):
        return {}
    runs = {}
    for place in _folders(folder):
        if _is_run(place):
            runs[place.name] = place
        else:
            runs |= {f"{place.name}/{run.name}": run for run in _folders(place) if _is_run(run)}
    return runs


def write_index(folder: Path, *, out: Path | None = None, say: Callable[[str], None] = lambda line: None) -> Path:
    """Write the index of a folder of runs and return its path.

    A report is written where a run has none, or one that is older than the run's last step, evaluation or end.

    Args:
        folder: of the runs.
        out: the page's file; by default `index.html` in the folder.
        say: gets a line for each report that is written.

    Raises:
        UsageError: there is no run in the folder, or the page's file is a folder or another file than a page.
        RunError: the page cannot be written.
    """
    runs = runs_in(folder)
    if not runs:
        raise UsageError(f"{folder} has no run folder: a run has a {CONFIG}.")
    default = folder / INDEX
    path = page_file(out or default, default)  # any web page may have the default's name

    def link(run: Path) -> str:
        if _is_old(run):
            say(f"report: {write(run)}")
        address = os.path.relpath(run / REPORT, path.parent)
        return quote(os.fsencode(Path(address).as_posix()))

    content = contents(runs, link)
    write_whole(path, page(title=folder.resolve().name, content=content, kind="index"))
    return path


def contents(runs: Mapping[str, Path], link: Callable[[Path], str]) -> dict[str, Any]:
    """What the page shows.

    Args:
        runs: from `runs_in`.
        link: gives the address of a run's page.
    """
    rows = []
    for name, folder in runs.items():
        try:
            row = outcome(read_run(folder)) | {"link": link(folder)}
        except (UsageError, RunError, OSError) as error:  # an OSError: it vanishes while it is read
            row = {"error": one_line(error)}
        rows.append(row | {"name": name})
    return {"runs": rows}


def _is_run(folder: Path) -> bool:
    return os.path.isfile(folder / CONFIG)  # unlike Path's, it is False for a name that no file can have


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(place for place in folder.iterdir() if place.is_dir())
    except OSError:  # it is no folder, or nobody may look into it
        return []


def _is_old(run: Path) -> bool:
    """Whether a run has no report, or has gone on since."""
    report = run / REPORT
    if not report.is_file():
        return True
    news = [(run / name).stat().st_mtime_ns for name in _NEWS if (run / name).is_file()]
    return max(news, default=0) > report.stat().st_mtime_ns
