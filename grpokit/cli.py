"""The command line. Thin: it reads arguments, calls the library and prints.

Nothing heavy is imported before a command needs it. Bad input prints one message and exits with 2, a failed run with
1, Ctrl-C with 130 after a checkpoint was saved.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpokit.errors import GrpokitError, RunError, UsageError, counted

if TYPE_CHECKING:
    from rich.console import Console

    from grpokit.types import Prompt


app = typer.Typer(
    help="Post-train image generators, and any other stochastic generator, with GRPO.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Source = Annotated[
    str, typer.Argument(metavar="PRESET_OR_FILE", help="A preset's name, a config file, or a run folder to --resume.")
]
RunOrSource = Annotated[
    str,
    typer.Argument(metavar="RUN_OR_PRESET", help="A run folder or one of its checkpoints, a preset, a config file."),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the config, as in trainer.steps=50.")
]


def main() -> None:
    """Entry point of the `grpokit` command."""
    sys.path.append(os.getcwd())  # so that a config can name `my_rewards:brightness` in a file beside it
    try:
        app()
    except GrpokitError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


@app.command()
def train(
    source: Source,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run folder's last checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete what the run folder holds.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Resume even though the config has changed.")] = False,
) -> None:
    """Train, and leave a run folder with metrics, samples, checkpoints and report.html."""
    from grpokit import build, run
    from grpokit.progress import watch

    config, name = build.read_config(source, overrides or [])
    try:
        with watch(_console()) as watcher:
            result = run.train(config, name=name, resume=resume, overwrite=overwrite, force=force, watcher=watcher)
    except KeyboardInterrupt:
        print("Stopped at once: what came after the last saved checkpoint is lost.", file=sys.stderr)
        raise typer.Exit(130) from None
    if result.interrupted:
        words = shlex.join(["grpokit", "train", source, *(overrides or []), "--resume"])
        print(f"Stopped after step {result.steps}; the state is saved. Go on with:\n  {words}")
        raise typer.Exit(130)
    if result.before is not None and result.after is not None:
        _print_scores({"before": result.before, "after": result.after})
    print(f"report: {result.folder / 'report.html'}")


@app.command()
def sample(
    source: RunOrSource,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the samples.")] = Path("samples"),
    prompt: Annotated[list[str] | None, typer.Option("--prompt", help="A prompt; may be given several times.")] = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", help="A file with one prompt per line.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Samples per prompt.")] = 1,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The most prompts to take.")] = 16,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write into a folder that holds files.")] = False,
) -> None:
    """Draw samples from a preset's start or from a run's last checkpoint."""
    from grpokit import build, folder
    from grpokit.evaluation import draw

    config, policy = _load_policy(source, overrides)
    given = _given_prompts(prompt, prompts)
    if os.path.isfile(out):
        raise UsageError(f"{out} is a file; expected a folder for the samples. Choose another with --out.")
    if os.path.isdir(out) and any(out.iterdir()) and not overwrite:
        raise UsageError(f"{out} is in use. Choose another folder with --out, or add --overwrite.")
    if given is None:
        train_prompts, held_out = build.prompts(config)
        given = train_prompts if held_out is None else held_out
    samples = draw(
        policy,
        given[:limit],
        seed=config.seed,
        samples_per_prompt=count,
        stream="sample",
        mixed_precision=config.trainer.mixed_precision,
    )
    try:
        folder.save_outputs(out, samples)
    except RunError as error:
        raise UsageError(
            f"The samples cannot be written to {out}: {error.__cause__}. Choose another folder with --out."
        ) from error
    print(f"{counted(len(samples), 'sample')} in {out}")


@app.command()
def evaluate(
    source: RunOrSource,
    overrides: Overrides = None,
    samples: Annotated[int | None, typer.Option("-n", "--samples", min=1, help="Samples per held-out prompt.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The most held-out prompts to take.")] = None,
) -> None:
    """Score held-out prompts: before training and, for a run, at its last checkpoint, with the same draws."""
    from grpokit import build, checkpoint
    from grpokit.evaluation import evaluate as score_policy

    config, folder = _read(source, overrides)
    terms = build.rewards(config)
    _, held_out = build.prompts(config)
    if held_out is None:
        raise UsageError("The config names no held-out prompts: give data.eval_prompts or data.eval_fraction.")
    policy = build.policy(config)
    columns = {}
    for label, place in (("before", None), ("after", folder)):
        if label == "after":
            if place is None:
                continue
            checkpoint.load_policy(place, policy)
        found = score_policy(
            policy,
            terms,
            held_out[:limit],
            seed=config.seed,
            samples_per_prompt=samples or config.run.eval_samples,
            mixed_precision=config.trainer.mixed_precision,
        )
        columns[label] = found.summary()
    _print_scores(columns)


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN [RUN]", help="A run folder, or two to compare.", show_default=False)
    ],
) -> None:
    """Write a run's report.html anew; of two runs, compare.html in the folder of the second."""
    from grpokit import report as reports

    if len(folders) == 1:
        print(f"report: {reports.write(folders[0])}")
    elif len(folders) == 2:
        print(f"comparison: {reports.compare(*folders)}")
    else:
        raise UsageError(f"Give one run folder for its report, or two to compare; got {len(folders)}.")


@app.command()
def rescore(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with recorded rollouts.")],
    reward: Annotated[str, typer.Option("--reward", help="Its name, or package.module:function.")],
    parameters: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="The reward's parameters, as in maximum=3.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="A Parquet file for the new scores.")] = None,
) -> None:
    """Score recorded rollouts with another reward: how would the rankings have changed?"""
    from rich.table import Table
    from rich.text import Text

    from grpokit import rescore as rescoring

    found = rescoring.rescore(run, reward, _parameters(parameters or []), out=out)
    table = Table("reward", box=None, pad_edge=False)
    for title in rescoring.HEADINGS:
        table.add_column(title, justify="right")
    for name, *cells in rescoring.table(found):
        table.add_row(Text(name), *cells)
    _console().print(table)
    for line in rescoring.lines(found):
        print(line)


@app.command()
def redraw(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    step: Annotated[int, typer.Option("--step", help="The step, from 1.")],
) -> None:
    """Draw a step of a run again, and compare it bit by bit with what the run kept."""
    from grpokit.redraw import redraw as draw_again

    found = draw_again(run, step, say=lambda line: print(line, file=sys.stderr))
    for line in found.lines():
        print(line)
    if not found.equal:
        raise typer.Exit(1)


@app.command()
def plugins() -> None:
    """List policies, rewards and presets with the package that brings each, and what is broken."""
    from rich.table import Table
    from rich.text import Text

    from grpokit import registry

    found = registry.plugins()
    table = Table(box=None, pad_edge=False)
    for title in ("kind", "name", "package", "version", "state"):
        table.add_column(title, no_wrap=True)
    table.add_column("what it does")  # the only one that a narrow terminal breaks

    def row(kind: str, name: str, plugin: registry.Plugin, state: str, text: str) -> None:
        cells = (kind, name, plugin.package, plugin.version)  # as Text: a plugin's own brackets are no markup
        table.add_row(*map(Text, cells), Text(state, style="" if state == "ok" else "red"), Text(text))

    for kind in ("policy", "reward", "preset", "advantage", "objective"):
        for plugin, spec in registry.specs(kind):
            row(kind, spec.name, plugin, "ok", spec.summary)
    for plugin in found:
        if plugin.error:
            row("plugin", plugin.name, plugin, "broken", "see below")
        elif not plugin.specs:
            row("plugin", plugin.name, plugin, "ok", "watches runs")
    console = _console()
    console.print(table)
    for plugin in found:
        if plugin.error:
            console.print(f"{plugin.name}: {plugin.error}", markup=False, soft_wrap=True)


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A policy or reward: its name, or package.module:Name.")],
    parameters: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its parameters, as in temperature=0.7.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="policy or reward, where NAME could be both.")] = None,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", help="A prompt for a policy; give two.")] = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", help="A file with one prompt per line.")] = None,
    slow: Annotated[bool, typer.Option("--slow", help="Also check that a policy learns a toy reward.")] = False,
) -> None:
    """Check a policy or a reward against its contract."""
    from rich.table import Table
    from rich.text import Text

    from grpokit import checking
    from grpokit.testing import find, outcomes

    given = _given_prompts(prompt, prompts)
    params = _parameters(parameters or [])
    if find.kind_of(name, kind) == "policy":
        checks = checking.of_policy(name, params, given if prompts is None or given is None else given[:4], slow=slow)
    else:
        if given:
            raise UsageError(f"'{name}' is a reward, which reads no prompts: leave --prompt and --prompts out.")
        checks = checking.of_reward(name, params)
    table = Table("check", "result", "message", box=None, pad_edge=False)
    failed = 0
    for outcome in outcomes(checks):
        failed += not outcome.ok
        state = Text("ok" if outcome.ok else "failed", style="" if outcome.ok else "red")
        table.add_row(Text(outcome.name), state, Text(outcome.message))
    _console().print(table)
    print(
        f"{name}: {failed} of {table.row_count} checks failed"
        if failed
        else f"{name}: all {table.row_count} checks passed"
    )
    if failed:
        raise typer.Exit(1)


@app.command()
def schema() -> None:
    """Print the JSON schema of a config, for editors."""
    from grpokit import config

    print(config.schema())


def _version(wanted: bool) -> None:
    if wanted:
        import grpokit

        print(grpokit.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _read(source: str, overrides: list[str] | None) -> tuple[Any, Path | None]:
    """The config of a run, checkpoint, preset or file, and the run's last checkpoint, or the one given."""
    from grpokit import build, checkpoint, config

    folder = Path(source)
    if not folder.is_dir():
        return build.read_config(source, overrides or [])[0], None
    if (folder / checkpoint.STATE).is_file():
        settings = json.dumps(checkpoint.read_state(folder).get("notes", {}).get("config"))
        return config.parse(settings, f"the config in {folder}", overrides or []), folder
    if not (folder / "config.yaml").is_file():
        raise UsageError(f"{folder} is no run folder: it has no config.yaml. It is no checkpoint either.")
    settings_of_run, _ = build.read_config(source, overrides or [])
    found = checkpoint.latest(folder / "checkpoints")
    if found is None:
        raise UsageError(f"The run {folder} has no checkpoint yet.")
    return settings_of_run, found


def _load_policy(source: str, overrides: list[str] | None) -> tuple[Any, Any]:
    from grpokit import build, checkpoint

    config, place = _read(source, overrides)
    policy = build.policy(config)
    if place is not None:
        checkpoint.load_policy(place, policy)
    return config, policy


def _given_prompts(prompt: list[str] | None, prompts: Path | None) -> Sequence[Prompt] | None:
    """The prompts of --prompt and --prompts, or None where neither is given."""
    from grpokit import data

    if prompt and prompts:
        raise UsageError("Give either --prompt or --prompts, not both.")
    if prompt:
        return data.as_prompts(prompt)
    return data.read_text(prompts) if prompts else None


def _parameters(given: list[str]) -> dict[str, Any]:
    import yaml

    from grpokit.source import parse_value

    params = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"Expected a parameter as key=value, got '{item}'.")
        try:
            params[key] = parse_value(value)
        except yaml.YAMLError as error:
            raise UsageError(f"The value of {key} is not YAML: {value!r}.") from error
    return params


def _print_scores(columns: Mapping[str, Mapping[str, Any]]) -> None:
    """A table of mean scores with their confidence half-widths."""
    from rich.table import Table

    def shown(row: Mapping[str, Any], name: str) -> str:
        mean, width = row.get(name), row.get(f"{name}/ci95")
        if mean is None or mean != mean:
            return "not scored"
        return f"{mean:.3f}" if width is None or width != width else f"{mean:.3f} ± {width:.3f}"

    table = Table("held-out", *columns, box=None, pad_edge=False)
    names = [n for n in next(iter(columns.values())) if n != "step" and not n.endswith("/ci95")]
    for name in names:
        table.add_row(name, *(shown(row, name) for row in columns.values()))
    _console().print(table)


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)
