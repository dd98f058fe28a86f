"""The commands that make runs and show them: train, sweep, report, watch, export, replay."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit.cli.app import FAILED, INTERRUPTED, app, console, grid, is_first, process_count
from grpokit.cli.options import ConfigCommand, Overrides, PresetOrFile
from grpokit.errors import RunError, UsageError, plural

if TYPE_CHECKING:
    from grpokit.config.schema import RunConfig
    from grpokit.evaluation.intervals import Summary

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN [RUN]...", help="Run folders; several are compared. Or one folder of runs.", show_default=False
    ),
]


@app.command(cls=ConfigCommand)
def train(
    source: PresetOrFile,
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
        from grpokit.runs.dry_run import dry_run as lines

        for line in lines(config, name=name):
            print(line, flush=True)
        print("\nNothing was trained and nothing was written.")
        return
    from grpokit.cli.progress import follow
    from grpokit.runs import train as run

    try:
        with follow(console()) as watcher:
            result = run.train(config, name=name, resume=resume, overwrite=overwrite, force=force, watcher=watcher)
    except KeyboardInterrupt:
        if is_first():
            print("Stopped at once. All steps after the last saved checkpoint are lost.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if not is_first():
        raise typer.Exit(INTERRUPTED if result.interrupted else 0)
    if result.interrupted:
        count = os.environ.get("LOCAL_WORLD_SIZE", "1")  # of processes on each machine
        several = ["torchrun", "--nproc-per-node", count, "-m"] if process_count() > 1 else []
        words = shlex.join([*several, "grpokit", "train", source, *(overrides or []), "--resume"])
        print(f"Stopped after step {result.steps}; the state is saved. Continue with:\n  {words}")
        raise typer.Exit(INTERRUPTED)
    if result.before is not None and result.after is not None and result.after.means:
        print_scores({"before": result.before, "after": result.after})
    print(f"report: {result.folder / 'report.html'}")


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
) -> None:
    """Train every combination of some values in turn.

    The folder of the sweep gets a run folder for each combination, and sweep.md, which compares the settings with
    intervals over the seeds. Running the command again skips finished runs and resumes the others. More values of the
    same keys may be added. A run that fails does not stop the others.
    """
    from grpokit.config import grid, presets

    points = grid.points(values)
    presets.read_config(source, points[0].overrides)  # a mistake is told before torch is imported, which takes seconds
    from grpokit.cli.progress import follow
    from grpokit.runs import sweep as sweeping

    again = shlex.join(["grpokit", *sys.argv[1:]])
    try:
        swept = sweeping.sweep(source, points, folder=folder, say=print, watching=lambda: follow(console()))
    except KeyboardInterrupt:
        print(f"Stopped at once. Continue from the last saved checkpoints with:\n  {again}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    print(f"{sweeping.settings_table(swept.settings)}comparison: {swept.folder / sweeping.PAGE}")
    if swept.interrupted:
        print(f"Stopped after a step; the state is saved. Continue with:\n  {again}")
        raise typer.Exit(INTERRUPTED)
    if swept.failed:
        lines = "".join(f"\n  {name}: {error}" for name, error in swept.failed.items())
        raise RunError(
            f"{plural(len(swept.failed), 'run')} of the sweep failed:{lines}\nCorrect the cause and run the same "
            "command again; it continues these runs."
        )


@app.command()
def report(
    folders: Runs,
    out: Annotated[Path | None, typer.Option("--out", help="The page's file.", show_default=False)] = None,
) -> None:
    """Write a run's report again, compare or list runs.

    The report is report.html in the run folder. A comparison is compare.html in the last run's folder. For a folder of
    runs, such as that of a sweep, it is index.html in that folder, which leads to their reports. Reports that are
    missing or out of date are written too.
    """
    from grpokit import report as reports

    if len(folders) == 1 and reports.runs_in(folders[0]):
        print(f"index: {reports.write_index(folders[0], out=out, say=print)}")
    elif len(folders) == 1:
        print(f"report: {reports.write(folders[0], out=out)}")
    else:
        print(f"comparison: {reports.compare(*folders, out=out)}")


@app.command()
def watch(
    folders: Runs,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")] = 8008,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Follow runs on a local page while they train.

    It is the page of report.html, and shows new steps and samples as they are written. Of a folder of runs it is a list
    that leads to the page of each. It only reads the run folders, so it can be started and ended at any time. Ctrl-C
    ends it.
    """
    import webbrowser

    from grpokit.report.watch import serving

    with serving(folders, port=port) as server:
        watched = server.front.folders()
        print(f"watching {plural(len(watched), 'run')} at {server.address}  (Ctrl-C ends it)", flush=True)
        for folder in watched:
            if not os.path.isfile(folder / "config.yaml"):  # unlike Path's, it is False for a name no file can have
                print(f"{folder} is not a run folder yet; waiting", flush=True)
        if browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nstopped watching")


@app.command(cls=ConfigCommand)
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or one of its checkpoints.")],
    to: Annotated[Path, typer.Option("--to", help="The new folder.")],
    overrides: Overrides = None,
    merge: Annotated[bool, typer.Option("--merge", help="Merge the adapter into its base model.")] = False,
    reward: Annotated[
        str, typer.Option("--reward", metavar="NAME", help="Write what this reward has learned instead.")
    ] = "",
) -> None:
    """Write a run's weights for other programs, with a model card.

    It takes the last checkpoint, or the one that RUN names. The policy decides which files: transformers and peft load
    those of hf-lm. With --reward it writes what a reward has learned in the run.
    """
    config, place = read_source(run, overrides)
    if place is None:
        raise UsageError(f"{run} is not a run folder. Give one, or one of its checkpoints.")
    from grpokit.runs.export import export as write
    from grpokit.runs.export import export_reward

    if reward:
        export_reward(config, place, reward, to)
    else:
        write(config, place, to, merge=merge)
    print(f"exported: {to}")


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    step: Annotated[int, typer.Option("--step", min=1, help="The step, from 1.")],
) -> None:
    """Draw a step of a run again, and compare it bit by bit.

    The comparison is with the run's metrics for that step. With run.record=true it also covers every sample and
    decision.
    """
    from grpokit.runs.replay import replay as draw_again

    comparison = draw_again(run, step, say=lambda line: print(line, file=sys.stderr))
    for line in comparison.lines():
        print(line)
    if not comparison.equal:
        raise typer.Exit(FAILED)


def read_source(source: str, overrides: list[str] | None) -> tuple[RunConfig, Path | None]:
    """The config of a run, checkpoint, preset or file, and the checkpoint: the run's last, or `source` itself."""
    from grpokit.config import presets

    folder = Path(source)
    if not os.path.isdir(folder) or presets.names_preset(source):
        return presets.read_config(source, overrides or [])[0], None
    from grpokit.runs import trained

    return trained.checkpoint_of(folder, overrides or [])


def print_scores(
    columns: Mapping[str, Summary],
    names: Iterable[str] | None = None,
    *,
    title: str = "held-out",
    parts: Mapping[str, Mapping[str, Summary]] | None = None,
) -> None:
    """A table of mean scores with their confidence half-widths.

    Args:
        columns: title -> the means; that of "change" has differences.
        names: of the scores; by default all.
        title: of the scores' names.
        parts: name of some of the prompts -> the same for them alone; a reward's follow its mean over all.
    """
    rows = []
    for name in next(iter(columns.values())).means if names is None else names:
        for part, own in {"": columns, **(parts or {})}.items():
            cells = [summary.text(name, sign="+" * (column == "change")) for column, summary in own.items()]
            rows.append([f"{name}{part and f', {part}'}", *cells])
    console().print(grid([title, *columns], rows))
