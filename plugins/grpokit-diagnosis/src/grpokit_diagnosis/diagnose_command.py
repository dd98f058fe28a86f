"""`grpokit diagnose`: why a run's reward does not move, and what to change."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from grpokit import report
from grpokit.cli.options import Json
from grpokit.run_folder.reader import read_run
from grpokit_diagnosis.diagnosis import Diagnosis
from grpokit_diagnosis.diagnosis import diagnose as find
from grpokit_diagnosis.panels import SAVED


def diagnose(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)],
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Also measure: load a checkpoint, take steps again, and score samples again."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Say why a run's reward does not move, and what to change.

    Without --probe it takes a second and reads what the run has logged. With --probe it takes as long as some dozens of
    the run's steps, on what the run was trained on; nothing in the run changes but its report, which gets the result.
    """
    history = read_run(run)
    found = find(history, probe=probe, say=lambda line: print(line, file=sys.stderr))
    content = found.as_json()
    if probe:
        (run / SAVED).write_text(json.dumps(content, indent=2), encoding="utf-8")
        report.write(run)
    print(json.dumps(content) if as_json else "\n".join(_lines(found)))


def _lines(found: Diagnosis) -> Iterator[str]:
    """A diagnosis for a terminal."""
    content = found.as_json()
    yield content["symptom"]
    yield _basis(found)
    for number, cause in enumerate(content["causes"], 1):
        yield ""
        yield f"{number}. {cause['title']}"
        yield f"   {cause['figures']}"
        yield f"   {cause['advice']}"
        if cause["check"]:
            yield f"   To check: {cause['check']}"
    if not content["causes"]:
        yield ""
        rising = found.symptom.course == "rising"
        yield "Nothing holds it back." if rising else "No cause was found in what was looked at."
    yield ""
    yield "looked at and fine"
    yield from (f"  {look['topic']}: {look['figures']}" for look in content["fine"])


def _basis(found: Diagnosis) -> str:
    """What the diagnosis rests on."""
    measured = found.measured
    if measured is None:
        return f"From what {found.run.steps} steps have logged. --probe also measures."
    return (
        f"From what {found.run.steps} steps have logged and from {measured.steps} steps that were taken again, with "
        f"the weights after step {measured.completed}. It took as long as {measured.cost:.0f} steps."
    )
