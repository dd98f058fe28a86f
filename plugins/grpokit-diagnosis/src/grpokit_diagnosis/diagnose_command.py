"""`grpokit diagnose`: why a run's reward does not move, and what to change."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from grpokit import report
from grpokit.cli.options import Json
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
    found = find(run, probe=probe, say=lambda line: print(line, file=sys.stderr))
    content = found.as_json()
    print(json.dumps(content) if as_json else found)
    if probe:
        try:
            (run / SAVED).write_text(json.dumps(content, indent=2), encoding="utf-8")
            report.write(run)
        except OSError as error:
            print(f"warning: the report could not be updated: {error}", file=sys.stderr)
