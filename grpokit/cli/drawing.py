"""The commands that draw with a run's weights or a preset's: sample and evaluate."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit.cli.app import app
from grpokit.cli.options import (
    ConfigCommand,
    Count,
    Json,
    Limit,
    Overrides,
    Prompts,
    PromptsFile,
    RunOrSource,
    read_prompts,
)
from grpokit.cli.runs import print_scores, read
from grpokit.errors import UsageError, counted, reworded, shown

if TYPE_CHECKING:
    from grpokit.config.schema import RunConfig
    from grpokit.data import PromptSequence
    from grpokit.evaluation.held_out import Evaluation
    from grpokit.policy import Policy
    from grpokit.rewards.terms import RewardTerm
    from grpokit.runs.side_by_side import Columns
    from grpokit.types import Prompt, Sample

_TEXTS = 5  # drawn texts that a command shows
_PROMPTS = 16  # prompts that `sample` takes


@app.command(cls=ConfigCommand)
def sample(
    source: RunOrSource,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", file_okay=False, help="Folder for the samples.")] = Path("samples"),
    prompt: Prompts = None,
    prompts: PromptsFile = None,
    count: Count = None,
    limit: Limit = None,
    before: Annotated[
        bool, typer.Option("--before", help="Also draw from the policy before training, with the same seeds.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write into a folder that already holds files.")
    ] = False,
) -> None:
    """Draw samples from a run's last checkpoint or from a preset.

    By default it draws one sample for each of the first 16 prompts. A preset's policy is untrained. With --before, the
    folders after and before hold samples of the trained and of the untrained policy. contact_sheet.png shows all
    pictures together.
    """
    config, place = read(source, overrides)
    if before and place is None:
        raise UsageError(f"--before needs a run folder, and {source} is not one. Remove --before.")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise UsageError(f"{out} already holds files. Choose another folder with --out, or add --overwrite.")
    from grpokit.evaluation.held_out import draw
    from grpokit.files import writing
    from grpokit.run_folder import journal
    from grpokit.runs import build
    from grpokit.runs.contact_sheet import SHEET, contact_sheet
    from grpokit.training import checkpoint

    own_prompts = read_prompts(prompt, prompts, config.data.columns)
    if own_prompts is None:
        training, held_out = build.prompts(config)
        own_prompts = training if held_out is None else held_out
    drawn = own_prompts.first(limit or _PROMPTS)
    build.check_prompts(config, drawn)
    policies = _policies(config, drawn)
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
        journal.save_outputs(folder, samples)
        print(f"{counted(len(samples), 'sample')} in {folder}")
        _print_texts(samples)
    with writing(out):
        contact_sheet(sheet, out / SHEET)
    if (out / SHEET).is_file():
        print(f"contact sheet: {out / SHEET}")


@app.command(cls=ConfigCommand)
def evaluate(
    source: RunOrSource,
    overrides: Overrides = None,
    using: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="EVALUATION",
            help="Other prompts and rewards: an installed evaluation's name, or a file with data, rewards and samples.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", file_okay=False, help="Folder for the page of --with; by default the run's.")
    ] = None,
    count: Count = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Score held-out prompts before and after training.

    "After" is a run's last checkpoint, or the checkpoint that RUN_OR_PRESET names. A preset has only "before". Both
    draw eval.samples samples per held-out prompt, unless --count says otherwise, from the same seeds. With --with they
    draw for an evaluation's prompts, KEY=VALUE also changes the evaluation's keys, and a run gets a page about it.
    """
    if out is not None and using is None:
        raise UsageError("--out is the folder of what --with finds. Add --with EVALUATION.")
    config, place, prompts, by = _to_evaluate(source, overrides or [], using, limit)
    from grpokit.runs import side_by_side
    from grpokit.training import checkpoint

    per_prompt = count or config.eval.samples
    folder = out
    if using is not None and out is None and place is not None:
        folder = _folder(config, place, using, [per_prompt, limit, *(overrides or [])])
    with side_by_side.reserved(folder) if folder else nullcontext() as own_folder:
        found = _evaluated(config, place, prompts, per_prompt, using)
        columns, parts = side_by_side.compared(found, total=not using), side_by_side.by_value(found, by)
        step = None if place is None else checkpoint.read_state(place)["step"]
        judges = _scored_by(config, found["before"].scores.names) if using else {}
        if as_json:
            facts = {"source": source, "checkpoint": place and str(place), "step": step, "seed": config.seed}
            facts |= {"prompts": len(prompts), "samples_per_prompt": per_prompt}
            facts |= {"scored_by": judges, "by": {part: _nested(own) for part, own in parts.items()}} if using else {}
            print(json.dumps({**facts, **_nested(columns)}))
        else:
            print_scores(columns, title=_short(using) if using else "held-out", parts=parts)
            for name, words in judges.items():
                print(f"{name}: {words}")
        if own_folder is not None:
            page = side_by_side.write(own_folder, config, dict(zip((0, step or 0), found.values(), strict=False)))
            print(f"report: {page}", file=sys.stderr if as_json else sys.stdout)


def _to_evaluate(
    source: str, words: Sequence[str], using: str | None, limit: int | None
) -> tuple[RunConfig, Path | None, PromptSequence, Sequence[str]]:
    """What is evaluated, the checkpoint, the prompts, and the columns whose values have scores of their own."""
    from grpokit.config import evaluation

    own = [word for word in words if using and evaluation.is_of_evaluation(word)]
    config, place = read(source, [word for word in words if word not in own])
    if using is None:
        training, held_out = _held_out(config)
        warnings = _about_held_out(training, held_out, None if words else place)
        prompts, by = held_out.first(limit), []
    else:
        config, settings = evaluation.put_in(config, using, own)
        from grpokit.runs import before_training, build

        named, of_function = build.prompts(config)  # the second: a function's held-out split
        prompts, by = (of_function or named).first(limit), settings.by
        known = {name: None for i in range(len(prompts)) for name in prompts.unopened(i).meta}
        if strange := [column for column in by if column not in known]:
            columns = ", ".join(known) or "none"
            raise UsageError(f"{config.place('by')}no prompt has the column '{strange[0]}'. Their columns: {columns}.")
        warnings = before_training.unscorable_prompts(config, prompts.first(0), prompts)
    for line in warnings:
        print(f"warning: {line}", file=sys.stderr)
    return config, place, prompts, by


def _evaluated(
    config: RunConfig, place: Path | None, prompts: Sequence[Prompt], per_prompt: int, using: str | None
) -> dict[str, Evaluation]:
    """ "before" and, where there is a checkpoint, "after" -> the evaluation; both have the same draws."""
    from grpokit.evaluation.held_out import evaluate as score_policy
    from grpokit.runs import build
    from grpokit.training import checkpoint

    found = {}
    other = "Evaluate another policy, or give prompts that this one can draw: 'data={prompts: FILE}' 'by=[]'."
    with _ready(config, prompts, remedy=f" {other}" if using else "") as (terms, policies):
        for label, weights in [("before", None), *([("after", place)] if place else [])]:
            if weights is not None:
                checkpoint.load_policies(weights, policies)
            _announce(f"{label} training: drawing", per_prompt, prompts)
            found[label] = score_policy(
                build.drawing(policies),
                terms,
                prompts,
                seed=config.seed,
                samples_per_prompt=per_prompt,
                mixed_precision=config.trainer.mixed_precision,
            )
            for line in found[label].scores.notes:
                print(f"warning, {label}: {line}", file=sys.stderr)
    return found


def _scored_by(config: RunConfig, names: Sequence[str]) -> dict[str, str]:
    """Each reward's name -> what computes it: the plugin's name and the parameters that the config sets."""
    from grpokit.config import yaml_source

    uses = [yaml_source.write({"use": reward.use, **reward.params}, inline=True).strip() for reward in config.rewards]
    return dict(zip(names, uses, strict=True))


def _folder(config: RunConfig, place: Path, using: str, words: Sequence[object]) -> Path:
    """Where the page of an evaluation goes: into the run of a checkpoint, and apart from every other evaluation."""
    from grpokit.config.schema import resolved
    from grpokit.data.digests import digest
    from grpokit.run_folder.names import CONFIG

    settings = resolved(config)
    own = digest([settings["data"], settings["rewards"], settings["seed"], *words])[:6]
    run = place.parent.parent
    home = run if (run / CONFIG).is_file() else place
    return home / "evaluations" / f"{_short(using)}-{place.name}-{own}"


def _short(evaluation: str) -> str:
    """The name of an evaluation without its distribution or its folder."""
    return Path(evaluation).stem.rpartition(":")[2]


def _announce(what: str, each: int, prompts: Sequence[Prompt]) -> None:
    samples = f"{counted(len(prompts) * each, 'sample')} of {counted(len(prompts), 'held-out prompt')}"
    print(f"{what} and scoring {samples} ...", file=sys.stderr)


def _policies(config: RunConfig, prompts: Sequence[Prompt], *, remedy: str = "") -> dict[str, Policy]:
    """The policies of a config, once the one that draws has accepted these prompts."""
    from grpokit.data import check_prompts
    from grpokit.runs import build

    policies = build.policies(config)
    with _advised(remedy):
        check_prompts(build.drawing(policies), prompts)
    return policies


@contextmanager
def _ready(
    config: RunConfig, prompts: Sequence[Prompt], *, remedy: str = ""
) -> Iterator[tuple[list[RewardTerm], dict[str, Policy]]]:
    """The rewards and the policies of a config, to draw and score these prompts; `remedy` is for refused prompts."""
    from grpokit.runs import build, build_rewards

    with _advised(remedy):
        build.check_prompts(config, prompts)
    terms = build_rewards.rewards(config)
    try:
        yield terms, _policies(config, prompts, remedy=remedy)
    finally:
        build_rewards.close(terms)


@contextmanager
def _advised(remedy: str) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise reworded(error, f"{error}{remedy}") from error


def _held_out(config: RunConfig) -> tuple[PromptSequence, PromptSequence]:
    """The training prompts of a config, and its held-out prompts.

    Raises:
        UsageError: there are no held-out prompts.
    """
    from grpokit.runs import build

    training, held_out = build.prompts(config)
    if held_out is None:
        raise UsageError("The config names no held-out prompts. Set eval.prompts or eval.fraction.")
    return training, held_out


def _about_held_out(training: PromptSequence, held_out: PromptSequence, place: Path | None) -> list[str]:
    """Warnings about held-out prompts that are trained on, or differ from those of the checkpoint's run."""
    from grpokit.runs import before_training, resuming

    texts = {held_out.row(i).prompt.text for i in range(len(held_out))}
    alike = training.subset(i for i in range(len(training)) if training.row(i).prompt.text in texts)
    digests = resuming.digests(alike, held_out)  # of no picture that cannot matter
    warnings = before_training.trained_held_out_prompts(alike, held_out, digests)
    if place is not None:
        changes = resuming.changed_prompts(place.parent.parent, digests, {"held_out": held_out})
        warnings += [f"unlike in the run, {line}" for line in changes.values()]
    return warnings


def _print_texts(samples: Sequence[Sample]) -> None:
    """Print the first texts with their prompts; pictures are in their folder."""
    texts = [sample for sample in samples if isinstance(sample.output, str)]
    for sample in texts[:_TEXTS]:
        print(f"  {shown(sample.prompt.text, most=40)} -> {shown(sample.output, most=100)}")
    if len(texts) > _TEXTS:
        print(f"  and {len(texts) - _TEXTS:,} more")


def _nested(columns: Columns) -> dict[str, dict[str, dict[str, float | None]]]:
    """Title -> score -> its mean and the half-width of its 95 % interval, None if there is no number."""
    return {
        title: {key: {"mean": row[key], "ci95": row[f"{key}/ci95"]} for key in row if f"{key}/ci95" in row}
        for title, row in columns.items()
    }
