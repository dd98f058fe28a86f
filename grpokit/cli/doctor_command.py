"""The command that examines an environment: doctor."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from typing import Annotated

import typer

from grpokit.cli.app import FAILED, app, console
from grpokit.errors import address, counted

_STYLES = {"ok": "green", "note": "yellow", "problem": "red"}


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Examine this environment and say what to fix.

    It looks at packages, plugins, weights and torch, and trains a tiny policy. It takes less than a minute and fetches
    nothing. The exit code is 1 if something is wrong.
    """
    from rich.text import Text

    from grpokit.doctor.environment import examine

    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            state = Text(f"{finding.state:<8}", style=_STYLES[finding.state])
            console().print(state.append(f" {finding.area:<11} {finding.what}", ""), soft_wrap=True)
            print(end=textwrap.indent(f"{finding.advice}\n" if finding.advice else "", " " * 21))
    problems, notes = (sum(finding.state == state for finding in findings) for state in ("problem", "note"))
    if as_json:
        print(json.dumps({"healthy": not problems, "findings": [*map(dataclasses.asdict, findings)]}, indent=2))
    else:
        words = counted(problems, "problem") if problems else "healthy"
        print(f"{words}, {counted(notes, 'note')}; see {address('doctor')}")
    if problems:
        raise typer.Exit(FAILED)
