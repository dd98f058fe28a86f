"""The command sweep: the runs of a small grid in turn, and a table that compares them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from grpokit.cli.app import INTERRUPTED, app, console
from grpokit.cli.config_options import ConfigCommand
from grpokit.errors import RunError, UsageError, counted

_MANY = 100  # runs from which on --yes is needed


@app.command(cls=ConfigCommand)
def sweep(
    source: Annotated[str, typer.Argument(metavar="PRESET_OR_FILE", help="A preset's name, or a config file.")],
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUES...",
            help="Values to try, as in trainer.learning_rate=1e-4,1e-3 seed=1..5. A single value applies to all runs.",
            show_default=False,
        ),
    ],
    folder: Annotated[
        Path | None, typer.Option("--dir", help="The folder of the sweep; by default sweeps/<name>.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Allow more than 100 runs.")] = False,
) -> None:
    """Train every combination of some values in turn.

    The folder of the sweep gets a run folder for each combination, and sweep.md, which compares the settings with
    intervals over the seeds. Running the command again skips finished runs and resumes the others. More values of the
    same keys may be added. A run that fails does not stop the others.
    """
    from grpokit.config import grid, presets

    points = grid.points(values)
    if len(points) > _MANY and not yes:
        raise UsageError(f"This sweep has {counted(len(points), 'run')}. Add --yes to train them all.")
    presets.read_config(source, points[0].overrides)  # a mistake is told before torch is imported, which takes seconds
    from grpokit.cli.progress import watch
    from grpokit.runs import sweep as sweeping

    screen = console()
    options = [*(["--dir", str(folder)] if folder else []), *(["--yes"] if yes else [])]
    again = shlex.join(["grpokit", "sweep", source, *values, *options])
    try:
        swept = sweeping.sweep(
            source,
            points,
            folder=folder,
            say=lambda line: screen.print(line, markup=False, soft_wrap=True),
            watching=lambda: watch(screen),
        )
    except KeyboardInterrupt:
        print(f"Stopped at once. Continue from the last saved checkpoints with:\n  {again}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    print(f"{sweeping.table(swept.settings)}comparison: {swept.folder / sweeping.PAGE}")
    if swept.interrupted:
        print(f"Stopped after a step; the state is saved. Continue with:\n  {again}")
        raise typer.Exit(INTERRUPTED)
    if swept.failed:
        lines = "".join(f"\n  {name}: {error}" for name, error in swept.failed.items())
        raise RunError(
            f"{counted(len(swept.failed), 'run')} of the sweep failed:{lines}\nCorrect the cause and run the same "
            "command again; it continues these runs."
        )
