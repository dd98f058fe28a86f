"""The command sweep: the runs of a small grid in turn, and a page that compares them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit.cli.app import INTERRUPTED, app, console
from grpokit.cli.config_options import ConfigCommand
from grpokit.errors import RunError, counted

if TYPE_CHECKING:
    from grpokit.report.sweep_page import Setting


@app.command(cls=ConfigCommand)
def sweep(
    source: Annotated[str, typer.Argument(metavar="PRESET_OR_FILE", help="A preset's name, or a config file.")],
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUES...",
            help="Values to try, as in trainer.learning_rate=1e-4,1e-3 seed=1..5. A single value is for all runs.",
            show_default=False,
        ),
    ],
    folder: Annotated[
        Path | None, typer.Option("--dir", help="The folder of the sweep; by default sweeps/<name>.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Train more than 100 runs.")] = False,
) -> None:
    """Train every combination of some values in turn.

    The folder of the sweep gets a run folder for each combination, and sweep.html, which compares the settings with
    intervals over the seeds. The same command again skips finished runs and resumes the others. More values of the
    same keys may be added. A run that fails does not stop the others.
    """
    from grpokit.config import grid as grids
    from grpokit.config import presets

    grid = grids.parse(values, many=yes)
    for point in grid.points()[:1]:  # a mistake is told before torch is imported, which takes seconds
        presets.read_config(source, [*grid.fixed, *(f"{key}={value}" for key, value in point.values.items())])
    from grpokit.cli.progress import watch
    from grpokit.report import sweep_page
    from grpokit.runs import sweep as sweeping

    screen = console()
    options = [*(["--dir", str(folder)] if folder else []), *(["--yes"] if yes else [])]
    again = shlex.join(["grpokit", "sweep", source, *values, *options])
    try:
        swept = sweeping.sweep(
            source,
            grid,
            folder=folder,
            say=lambda line: screen.print(line, markup=False, soft_wrap=True),
            watching=lambda: watch(screen),
        )
    except KeyboardInterrupt:
        print(f"Stopped at once. Go on from the last saved checkpoints with:\n  {again}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    _print_results(sweep_page.results(swept.page.parent))
    print(f"comparison: {swept.page}")
    if swept.interrupted:
        print(f"Stopped after a step; the state is saved. Go on with:\n  {again}")
        raise typer.Exit(INTERRUPTED)
    if swept.failed:
        by_error: dict[str, list[str]] = {}
        for name, error in swept.failed.items():
            by_error.setdefault(error, []).append(name)
        lines = "".join(f"\n  {', '.join(names)}: {error}" for error, names in by_error.items())
        raise RunError(
            f"{counted(len(swept.failed), 'run')} of the sweep failed:{lines}\nCorrect the cause, and give the same "
            "command again; it goes on with these runs."
        )


def _print_results(results: Mapping[str, Sequence[Setting]]) -> None:
    """A table of the settings with each score's mean over the seeds."""
    from rich.table import Table
    from rich.text import Text

    if not results:
        return
    first = next(iter(results))
    table = Table("setting", *results, f"{first}, to the first", "runs", box=None, pad_edge=False)
    for rows in zip(*results.values(), strict=True):
        cells = [str(row.reached or "-") for row in rows]
        change = rows[0].difference.change if rows[0] is not results[first][0] and rows[0].difference else "-"
        table.add_row(*map(Text, [rows[0].words, *cells, change, str(len(rows[0].scores))]))
    console().print(table)
