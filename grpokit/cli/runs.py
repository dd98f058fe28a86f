"""The commands that make and read runs: train, sample, evaluate, export, redraw."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpokit.cli.app import FAILED, INTERRUPTED, app, console, for_one_process, is_first, started_together
from grpokit.cli.config_options import ConfigCommand
from grpokit.cli.options import (
    Count,
    Limit,
    Overrides,
    Prompts,
    PromptsFile,
    RunOrSource,
    Source,
    read_prompts,
    whole_number,
)
from grpokit.errors import RunError, UsageError, counted, shown

if TYPE_CHECKING:
    from grpokit.config.schema import RunConfig
    from grpokit.data import PromptSequence
    from grpokit.phases.phased_trainer import PhasedTrainer
    from grpokit.runs.run import Result
    from grpokit.types import Sample

_TEXTS = 5  # drawn texts that a command shows
_PROMPTS = 16  # prompts that `sample` takes


@app.command(cls=ConfigCommand)
def train(
    source: Source,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the run folder's last checkpoint; without one, start.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete what the run folder holds.")] = False,
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
        for_one_process("grpokit train --dry-run")
        if resume or overwrite or force:
            raise UsageError("--dry-run writes nothing, so it goes with none of --resume, --overwrite and --force.")
        _dry_run(config, name)
        return
    from grpokit.cli.progress import watch
    from grpokit.runs import train as run

    first = 0
    try:
        with watch(console()) as watcher:

            def start(trainer: PhasedTrainer) -> None:
                nonlocal first
                first = trainer.completed
                watcher.start(trainer)

            noting = replace(watcher, start=start)
            result = run.train(
                config,
                name=name,
                resume=resume,
                overwrite=overwrite,
                force=force,
                watcher=noting,
            )
    except KeyboardInterrupt:
        if is_first():
            print("Stopped at once. All steps after the last saved checkpoint are lost.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if not is_first():
        raise typer.Exit(INTERRUPTED if result.interrupted else 0)
    if result.interrupted:
        words = shlex.join([*_started_as(), "train", source, *(overrides or []), "--resume"])
        print(f"Stopped after step {result.steps}; the state is saved. Go on with:\n  {words}")
        raise typer.Exit(INTERRUPTED)
    if first == result.steps:
        print(_complete(result, config))
    if result.before is not None and result.after is not None:
        _print_scores({"before": result.before, "after": result.after})
    print(f"report: {result.folder / 'report.html'}")


@app.command(cls=ConfigCommand)
def sample(
    source: RunOrSource,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the samples.")] = Path("samples"),
    prompt: Prompts = None,
    prompts: PromptsFile = None,
    count: Count = None,
    limit: Limit = None,
    before: Annotated[
        bool, typer.Option("--before", help="Draw from the run's untrained start, too, with the same seeds.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write into a folder that holds files already.")
    ] = False,
) -> None:
    """Draw samples from a run's last checkpoint or from a preset.

    By default it draws one sample for each of the first 16 prompts. A preset's policy is untrained. With --before, the
    samples of a run and of its start lie side by side in the folders after and before. Pictures are shown together in
    contact_sheet.png as well.
    """
    config, place = read(source, overrides)
    if before and place is None:
        raise UsageError(f"--before compares a run with its start, and {source} is no run folder. Leave it out.")
    from grpokit.data import check_prompts
    from grpokit.evaluation.held_out import draw
    from grpokit.run_folder import journal
    from grpokit.runs import build
    from grpokit.runs.contact_sheet import SHEET, contact_sheet
    from grpokit.training import checkpoint

    own_prompts = read_prompts(prompt, prompts, config.data.columns)
    if os.path.isfile(out):
        raise UsageError(f"{out} is a file; expected a folder for the samples. Choose another with --out.")
    if os.path.isdir(out) and any(out.iterdir()) and not overwrite:
        raise UsageError(f"{out} holds files already. Choose another folder with --out, or add --overwrite.")
    if own_prompts is None:
        train_prompts, held_out = build.prompts(config)
        own_prompts = train_prompts if held_out is None else held_out
    drawn = own_prompts.first(limit or _PROMPTS)
    build.check_prompts(config, drawn)
    policies = build.policies(config)
    check_prompts(build.drawing(policies), drawn)
    sheet: dict[str, Sequence[Sample]] = {}
    for folder, weights in ((out / "before", None), (out / "after", place)) if before else ((out, place),):
        if weights is not None:
            checkpoint.load_policies(weights, policies)
        samples = draw(
            build.drawing(policies),
            drawn,
            seed=config.seed,
            samples_per_prompt=count or 1,
            stream="sample",
            mixed_precision=config.trainer.mixed_precision,
        )
        sheet[folder.name] = samples
        with _writing_to(folder):
            journal.save_outputs(folder, samples)
        print(f"{counted(len(samples), 'sample')} in {folder}")
        _print_texts(samples)
    with _writing_to(out):
        contact_sheet(sheet, out / SHEET)
    if (out / SHEET).is_file():
        print(f"contact sheet: {out / SHEET}")


@app.command(cls=ConfigCommand)
def evaluate(
    source: RunOrSource,
    overrides: Overrides = None,
    count: Count = None,
    limit: Limit = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else, on stdout.")
    ] = False,
) -> None:
    """Score held-out prompts before and after training.

    "After" is a run's last checkpoint, or the checkpoint that RUN_OR_PRESET names. A preset has only "before". Both
    draw run.eval_samples samples per held-out prompt, unless --count says otherwise, from the same seeds.
    """
    config, folder = read(source, overrides)
    from grpokit.data import check_prompts
    from grpokit.evaluation.held_out import evaluate as score_policy
    from grpokit.runs import build, build_rewards
    from grpokit.training import checkpoint

    training, held_out = build.prompts(config)
    if held_out is None:
        raise UsageError("The config names no held-out prompts. Set data.eval_prompts or data.eval_fraction.")
    prompts = held_out.first(limit)
    build.check_prompts(config, prompts)
    for line in _about_held_out(source, overrides, folder, training, held_out):
        print(f"warning: {line}", file=sys.stderr)
    terms = build_rewards.rewards(config)
    columns = {}
    try:
        policies = build.policies(config)
        check_prompts(build.drawing(policies), prompts)
        per_prompt = count or config.run.eval_samples
        for label, place in (("before", None), ("after", folder)):
            if label == "after":
                if place is None:
                    continue
                checkpoint.load_policies(place, policies)
            work = f"{counted(len(prompts) * per_prompt, 'sample')} of {counted(len(prompts), 'held-out prompt')}"
            print(f"{label} training: drawing and scoring {work} ...", file=sys.stderr)
            evaluation = score_policy(
                build.drawing(policies),
                terms,
                prompts,
                seed=config.seed,
                samples_per_prompt=per_prompt,
                mixed_precision=config.trainer.mixed_precision,
            )
            columns[label] = evaluation.summary()
            for line in evaluation.scores.notes:
                print(f"warning, {label}: {line}", file=sys.stderr)
    finally:
        build_rewards.close(terms)
    if as_json:
        step = None if folder is None else checkpoint.read_state(folder)["step"]
        facts = {"source": source, "checkpoint": folder and str(folder), "step": step, "seed": config.seed}
        scores = {label: _nested(row) for label, row in columns.items()}
        print(json.dumps({**facts, "prompts": len(prompts), "samples_per_prompt": per_prompt, **scores}))
    else:
        _print_scores(columns)


def _about_held_out(
    source: str,
    overrides: list[str] | None,
    place: Path | None,
    training: PromptSequence,
    held_out: PromptSequence,
) -> list[str]:
    """Warnings about held-out prompts that were trained on, or are not those of the run."""
    from grpokit.data.sequences import Subset
    from grpokit.runs import before_training, build, resuming

    warnings = []
    if overrides:
        try:
            training, _ = build.prompts(read(source, None)[0])  # those of the run
        except UsageError as error:
            warnings.append(f"it is not known whether held-out prompts were trained on: {error}")
    texts = {held_out.parts(i)[0][0] for i in range(len(held_out))}
    alike = Subset(training, [i for i in range(len(training)) if training.parts(i)[0][0] in texts])
    digests = resuming.digests(alike, held_out)  # of no picture that cannot matter
    warnings += before_training.trained_held_out_prompts(alike, held_out, digests)
    if place is not None and not overrides:
        sequences = {"train": alike, "held_out": held_out}
        changes, unknown = resuming.changed_prompts(place.parent.parent, digests, sequences)
        warnings += [f"unlike in the run, {line}" for kind, line in changes.items() if kind == "held_out"] + unknown
    return warnings


@app.command(cls=ConfigCommand)
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or one of its checkpoints.")],
    to: Annotated[Path, typer.Option("--to", help="The new folder.")],
    overrides: Overrides = None,
    merge: Annotated[bool, typer.Option("--merge", help="Add an adapter to its base: a whole model.")] = False,
) -> None:
    """Write a run's weights for other programs, with a model card.

    It takes the last checkpoint, or the one that RUN names. The policy decides on the files: those of hf-lm are loaded
    by transformers and peft.
    """
    config, place = read(run, overrides)
    if place is None:
        raise UsageError(f"{run} is no run folder, so it has no trained weights. Give one, or one of its checkpoints.")
    from grpokit.runs.export import export as write

    write(config, place, to, merge=merge)
    print(f"exported: {to}")


@app.command()
def redraw(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    step: Annotated[int, whole_number("--step", help="The step, from 1.")],
) -> None:
    """Draw a step of a run again, and compare bit by bit.

    The comparison is with the run's metrics for that step. After run.record=true, it also covers every sample and
    decision.
    """
    from grpokit.runs.redraw import redraw as draw_again

    comparison = draw_again(run, step, say=lambda line: print(line, file=sys.stderr))
    for line in comparison.lines():
        print(line)
    if not comparison.equal:
        raise typer.Exit(FAILED)


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    """A folder that cannot be written was the wrong one to name."""
    try:
        yield
    except (RunError, OSError) as error:
        cause = error.__cause__ or error
        raise UsageError(
            f"The samples cannot be written to {folder}: {cause}. Choose another folder with --out."
        ) from error


def _dry_run(config: RunConfig, name: str) -> None:
    from grpokit.runs.dry_run import dry_run

    for line in dry_run(config, name=name):
        console().print(line, markup=False, soft_wrap=True)
    print("\nNothing was trained and nothing was written. `grpokit plan` estimates memory and time on a GPU.")


def _started_as() -> list[str]:
    """The words before `train` that start as many processes as there are."""
    size = started_together()
    if size == 1:
        return ["grpokit"]
    how = ["--nproc-per-node", str(size)] if os.environ.get("LOCAL_WORLD_SIZE") == str(size) else ["..."]
    return ["torchrun", *how, "-m", "grpokit"]


def _complete(result: Result, config: RunConfig) -> str:
    """The line for a resume of a run that is complete, and how to train it further."""
    total = result.planned
    if result.steps < total:
        return f"{result.folder} is already complete: it converged after {result.steps} of {counted(total, 'step')}."
    schedules = {config.trainer.schedule, *(own.trainer.schedule for _, own in config.phased())}
    more = "" if schedules == {"constant"} else " (with this schedule it also needs --force)"
    return (
        f"{result.folder} is already complete ({result.steps} of {counted(total, 'step')}). Raise "
        f"{'rounds' if config.phases else 'trainer.steps'} to train further{more}."
    )


def _print_texts(samples: Sequence[Sample]) -> None:
    """Print the first texts with their prompts; pictures are in their folder."""
    texts = [sample for sample in samples if isinstance(sample.output, str)]
    for sample in texts[:_TEXTS]:
        print(f"  {shown(sample.prompt.text, most=40)} -> {shown(sample.output, most=100)}")
    if len(texts) > _TEXTS:
        print(f"  and {len(texts) - _TEXTS:,} more")


def read(source: str, overrides: list[str] | None) -> tuple[Any, Path | None]:
    """The config of a run, checkpoint, preset or file, and the checkpoint: the run's last, or `source` itself."""
    from grpokit.config import presets

    folder = Path(source)
    if not os.path.isdir(folder) or presets.names_preset(source):
        return presets.read_config(source, overrides or [])[0], None
    from grpokit.runs import trained

    return trained.read(folder, overrides or [])


def is_run(source: str) -> bool:
    """Whether `read` takes it for a run folder."""
    from grpokit.config import presets

    return os.path.isfile(Path(source) / "config.yaml") and not presets.names_preset(source)


def _nested(summary: Mapping[str, float]) -> dict[str, dict[str, float | None]]:
    """Score -> its mean and the half-width of its 95 % interval, None where there is no number."""
    number = {key: value if math.isfinite(value) else None for key, value in summary.items()}
    return {key: {"mean": number[key], "ci95": number[f"{key}/ci95"]} for key in summary if f"{key}/ci95" in summary}


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
    console().print(table)
