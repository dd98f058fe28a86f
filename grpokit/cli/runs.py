"""The commands that make and read runs: train, export, redraw."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpokit.cli.app import FAILED, INTERRUPTED, app, console, for_one_process, grid, is_first, started_together
from grpokit.cli.config_options import ConfigCommand
from grpokit.cli.options import Overrides, Source
from grpokit.errors import UsageError

if TYPE_CHECKING:
    from grpokit.config.schema import RunConfig


@app.command(cls=ConfigCommand)
def train(
    source: Source,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the run folder's last checkpoint; start if it has none.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the run folder's contents first.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Resume even if the config or the prompts have changed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build everything, draw and score one group, and train nothing.")
    ] = False,
) -> None:
    """Train, and write a run folder with its report.

    The folder holds metrics, samples, checkpoints and report.html.
    """
    from grpokit.config import presets

    config, name = presets.read_config(source, overrides or [])  # before torch is imported, which takes seconds
    if dry_run:
        _dry_run(config, name)
        return
    from grpokit.cli.progress import watch
    from grpokit.runs import train as run

    try:
        with watch(console()) as watcher:
            result = run.train(config, name=name, resume=resume, overwrite=overwrite, force=force, watcher=watcher)
    except KeyboardInterrupt:
        if is_first():
            print("Stopped at once. All steps after the last saved checkpoint are lost.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if not is_first():
        raise typer.Exit(INTERRUPTED if result.interrupted else 0)
    if result.interrupted:
        words = shlex.join([*_started_as(), "train", source, *(overrides or []), "--resume"])
        print(f"Stopped after step {result.steps}; the state is saved. Continue with:\n  {words}")
        raise typer.Exit(INTERRUPTED)
    if result.before is not None and result.after is not None:
        print_scores({"before": result.before, "after": result.after})
    print(f"report: {result.folder / 'report.html'}")


@app.command(cls=ConfigCommand)
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or one of its checkpoints.")],
    to: Annotated[Path, typer.Option("--to", help="The new folder.")],
    overrides: Overrides = None,
    merge: Annotated[bool, typer.Option("--merge", help="Merge the adapter into its base model.")] = False,
) -> None:
    """Write a run's weights for other programs, with a model card.

    It takes the last checkpoint, or the one that RUN names. The policy decides which files: transformers and peft load
    those of hf-lm.
    """
    config, place = read(run, overrides)
    if place is None:
        raise UsageError(f"{run} is not a run folder. Give one, or one of its checkpoints.")
    from grpokit.runs.export import export as write

    write(config, place, to, merge=merge)
    print(f"exported: {to}")


@app.command()
def redraw(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    step: Annotated[int, typer.Option("--step", min=1, help="The step, from 1.")],
) -> None:
    """Draw a step of a run again, and compare it bit by bit.

    The comparison is with the run's metrics for that step. With run.record=true it also covers every sample and
    decision.
    """
    from grpokit.runs.redraw import redraw as draw_again

    comparison = draw_again(run, step, say=lambda line: print(line, file=sys.stderr))
    for line in comparison.lines():
        print(line)
    if not comparison.equal:
        raise typer.Exit(FAILED)


def _dry_run(config: RunConfig, name: str) -> None:
    from grpokit.runs.dry_run import dry_run

    for_one_process("grpokit train --dry-run")
    for line in dry_run(config, name=name):
        console().print(line, markup=False, soft_wrap=True)
    print("\nNothing was trained and nothing was written. `grpokit plan` estimates memory and time on a GPU.")


def _started_as() -> list[str]:
    """The words before `train` that start the same number of processes."""
    size = started_together()
    if size == 1:
        return ["grpokit"]
    how = ["--nproc-per-node", str(size)] if os.environ.get("LOCAL_WORLD_SIZE") == str(size) else ["..."]
    return ["torchrun", *how, "-m", "grpokit"]


def read(source: str, overrides: list[str] | None) -> tuple[Any, Path | None]:
    """The config of a run, checkpoint, preset or file, and the checkpoint: the run's last, or `source` itself."""
    from grpokit.config import presets

    folder = Path(source)
    if not os.path.isdir(folder) or presets.names_preset(source):
        return presets.read_config(source, overrides or [])[0], None
    from grpokit.runs import trained

    return trained.read(folder, overrides or [])


def print_scores(columns: Mapping[str, Mapping[str, Any]]) -> None:
    """A table of mean scores with their confidence half-widths: title -> a row of eval.jsonl."""

    def shown(row: Mapping[str, Any], name: str) -> str:
        mean, width = row.get(name), row.get(f"{name}/ci95")
        if mean is None or mean != mean:
            return "not scored"
        return f"{mean:.3f}" if width is None or width != width else f"{mean:.3f} ± {width:.3f}"

    names = [name for name in next(iter(columns.values())) if name != "step" and not name.endswith("/ci95")]
    rows = [[name, *(shown(row, name) for row in columns.values())] for name in names]
    console().print(grid(["held-out", *columns], rows))
