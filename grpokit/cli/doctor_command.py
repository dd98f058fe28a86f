"""The command that examines an environment: doctor."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit.cli.app import FAILED, app, console
from grpokit.errors import address, counted

if TYPE_CHECKING:
    from grpokit.doctor import Finding

_STYLES = {"ok": "green", "note": "yellow", "problem": "red"}


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Examine this environment and say what to mend.

    It looks at Python, torch, torchvision, the plugins, their weights and the machine, and trains a tiny policy. It
    takes less than a minute and fetches nothing. The exit code is 1 if something is wrong.
    """
    from rich.text import Text

    from grpokit.doctor import examine, isolated

    out = console()
    findings: list[Finding] = []
    pages: set[str] = set()
    for finding in examine():
        findings.append(finding)
        if as_json:
            continue
        out.print(
            Text(f"{finding.state:<8}", style=_STYLES[finding.state]).append(f" {finding.area:<11} {finding.what}", ""),
            soft_wrap=True,
        )
        advice = [finding.advice] if finding.advice else []
        links = {finding.page} - pages - {""}  # each once
        pages |= links
        for line in [*advice, *(f"see {address(page)}" for page in links)]:
            print(textwrap.indent(line, " " * 21))
    problems, notes = (sum(finding.state == state for finding in findings) for state in ("problem", "note"))
    if as_json:
        print(isolated.as_json(findings))
    else:
        print(
            f"{counted(problems, 'problem')}, {counted(notes, 'note')}"
            if problems
            else f"healthy, {counted(notes, 'note')}"
        )
    if problems:
        raise typer.Exit(FAILED)
