"""Evaluations of one config side by side, before and after training: the numbers of a table, and a page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path

from grpokit import report
from grpokit.config.schema import RunConfig
from grpokit.errors import UsageError
from grpokit.evaluation.held_out import Evaluation
from grpokit.files import step_folders
from grpokit.report.scores import changes
from grpokit.run_folder.header import UNFINISHED, begun, write_header
from grpokit.run_folder.journal import Journal, all_scores, finite
from grpokit.run_folder.lock import locked
from grpokit.run_folder.names import (
    COMPARISON,
    CONFIG,
    DATA,
    END,
    EVALUATIONS,
    METRICS,
    REPORT,
    REPORT_PICTURE,
    SAMPLES,
    VERSIONS,
)
from grpokit.run_folder.reader import read_object

_SHOWN = 64  # samples of each evaluation on the page
_PAGES = {REPORT, REPORT_PICTURE, COMPARISON}
_FILES = {VERSIONS, DATA, CONFIG, METRICS, EVALUATIONS, END, SAMPLES, *_PAGES}  # all that an evaluation has

Columns = dict[str, dict[str, float | None]]
"""Title -> a row of `eval.jsonl`; "change" has the mean differences, and the intervals of paired differences."""


def compared(found: Mapping[str, Evaluation], *, total: bool = True) -> Columns:
    """The means of one evaluation, or of two and what changed.

    Args:
        found: title -> the evaluation; two have the same prompts and draws.
        total: whether the weighted sum is also there where it is that of one reward with the weight 1.
    """
    columns: Columns = {}
    for title, evaluation in found.items():
        columns[title] = finite(evaluation.summary())
    scores = next(iter(found.values())).scores
    weights = dict(zip(scores.names, scores.weights.tolist(), strict=True))
    if total or scores.trained.weights.tolist() != [1.0]:
        weights["reward"] = 1.0
    else:
        for row in columns.values():
            del row["reward"], row["reward/ci95"]
    if len(found) == 2:
        before, after = columns.values()
        old, new = map(all_scores, found.values())
        differences: dict[str, float | None] = {}
        for change in changes(before, after, old, new, weights):
            differences[change.name] = change.change
            differences[f"{change.name}/ci95"] = change.width
        columns["change"] = differences
    return columns


def by_value(found: Mapping[str, Evaluation], columns: Sequence[str]) -> dict[str, Columns]:
    """The same for the prompts of each value that some of their columns have.

    Args:
        found: as in `compared`.
        columns: names in the `meta` of the prompts.

    Returns:
        "column value" -> what `compared` gives for those prompts.
    """
    samples = next(iter(found.values())).samples
    parts = {}
    for column in columns:
        values = [sample.prompt.meta.get(column) for sample in samples]
        for value in dict.fromkeys(value for value in values if value is not None):
            rows = [i for i, own in enumerate(values) if own == value]
            evaluations = {title: evaluation.part(rows) for title, evaluation in found.items()}
            parts[f"{column} {value}"] = compared(evaluations, total=False)
    return parts


@contextmanager
def reserved(folder: Path) -> Iterator[Path]:
    """Inside, no other process writes an evaluation into a folder; gives its absolute path.

    Raises:
        UsageError: another process does, or the folder holds anything but an earlier evaluation.
    """
    folder = folder.absolute()  # the code of a component may call os.chdir
    with locked(folder, work="writing an evaluation into", option="--out."):
        names: set[str] = set()
        if folder.is_dir():
            names = {place.name for place in folder.iterdir()}
        if names and UNFINISHED not in names and not _is_evaluation(folder, names):
            raise UsageError(
                f"{folder} already holds files that are not an evaluation. Choose another folder with --out.",
                page="evaluations",
            )
        yield folder


def _is_evaluation(folder: Path, names: Set[str]) -> bool:
    samples = folder / SAMPLES
    if samples.is_dir() and len(step_folders(samples)) != len(os.listdir(samples)):
        return False
    return {CONFIG, DATA} <= names <= _FILES and read_object(folder / DATA)["train"] is None


def write(folder: Path, config: RunConfig, found: Mapping[int, Evaluation]) -> Path:
    """Keep evaluations in a folder that `grpokit report` reads and compares, and write its page.

    Args:
        folder: of the evaluation, and reserved for it; an earlier one in it is replaced.
        config: what was evaluated.
        found: completed steps -> the evaluation.

    Raises:
        RunError: it cannot be written.
    """
    with begun(folder, resumed=False):
        write_header(folder, config, {"train": None, "held_out": None})
        journal = Journal(folder, 0)
        for step, evaluation in found.items():
            journal.evaluation(step, evaluation, most=_SHOWN)
        journal.end("finished", planned=0)
        return report.write(folder)
