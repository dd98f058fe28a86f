"""The commands that draw with a run's weights or a preset's: sample, evaluate, attribute."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit.cli.app import app, console, grid
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
from grpokit.errors import UsageError, counted, shown

if TYPE_CHECKING:
    from grpokit.config.schema import RunConfig
    from grpokit.data import PromptSequence
    from grpokit.policy import Policy
    from grpokit.rewards.terms import RewardTerm
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
    count: Count = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Score held-out prompts before and after training.

    "After" is a run's last checkpoint, or the checkpoint that RUN_OR_PRESET names. A preset has only "before". Both
    draw eval.samples samples per held-out prompt, unless --count says otherwise, from the same seeds.
    """
    config, place = read(source, overrides)
    from grpokit.evaluation.held_out import evaluate as score_policy
    from grpokit.runs import build
    from grpokit.training import checkpoint

    training, held_out = _held_out(config)
    prompts = held_out.first(limit)
    for line in _about_held_out(training, held_out, None if overrides else place):
        print(f"warning: {line}", file=sys.stderr)
    per_prompt = count or config.eval.samples
    columns = {}
    with _ready(config, prompts) as (terms, policies):
        for label, weights in [("before", None), *([("after", place)] if place else [])]:
            if weights is not None:
                checkpoint.load_policies(weights, policies)
            _announce(f"{label} training: drawing", per_prompt, prompts)
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
    if as_json:
        step = None if place is None else checkpoint.read_state(place)["step"]
        facts = {"source": source, "checkpoint": place and str(place), "step": step, "seed": config.seed}
        scores = {label: _nested(row) for label, row in columns.items()}
        print(json.dumps({**facts, "prompts": len(prompts), "samples_per_prompt": per_prompt, **scores}))
    else:
        print_scores(columns)


@app.command(cls=ConfigCommand)
def attribute(
    source: RunOrSource,
    overrides: Overrides = None,
    rows: Annotated[int, typer.Option("--rows", min=2, help="Row seeds per prompt.")] = 4,
    groups: Annotated[int, typer.Option("--groups", min=2, help="Group seeds per prompt.")] = 4,
    limit: Limit = None,
) -> None:
    """Show which source of randomness moves each reward.

    Some draws are a sample's own, others are shared by its group. This draws a grid of --rows by --groups samples for
    each held-out prompt, with the weights of RUN_OR_PRESET, and splits each reward's variance between the two. For
    glm-image-ar they are the visual tokens and the decoder's noise, so the larger share shows which half to train
    next. Results for a run are kept in its folder and shown in its report.
    """
    config, place = read(source, overrides)
    from grpokit import registry, report
    from grpokit.evaluation.attribution import attribute as attributed
    from grpokit.registry.specs import PolicySpec
    from grpokit.run_folder import journal
    from grpokit.run_folder.names import CONFIG
    from grpokit.runs import build
    from grpokit.training import checkpoint

    prompts = _held_out(config)[1].first(limit)
    spec = registry.spec_of("policy", config.policy.use)
    named = spec if isinstance(spec, PolicySpec) else PolicySpec
    causes = named.row_draws, named.group_draws
    with _ready(config, prompts) as (terms, policies):
        if place is not None:
            checkpoint.load_policies(place, policies)
        _announce("drawing", rows * groups, prompts)
        shares = attributed(
            build.drawing(policies),
            terms,
            prompts,
            seed=config.seed,
            row_seeds=rows,
            group_seeds=groups,
            mixed_precision=config.trainer.mixed_precision,
        )
    table = []
    for name, own in shares.items():
        parts = [f"{part:.0%}" for part in (own.row, own.group, own.both)] if own.variance else ["-"] * 3
        table.append([name, *parts, f"{own.variance**0.5:.3g}", str(own.prompts)])
    console().print(grid(["reward", *causes, "both", "std", "prompts"], table))
    if place is not None and (Path(source) / CONFIG).is_file():
        journal.append_attribution(Path(source), int(checkpoint.read_state(place)["step"]), shares, causes)
        print(f"report: {report.write(Path(source))}")


def _announce(what: str, each: int, prompts: Sequence[Prompt]) -> None:
    samples = f"{counted(len(prompts) * each, 'sample')} of {counted(len(prompts), 'held-out prompt')}"
    print(f"{what} and scoring {samples} ...", file=sys.stderr)


def _policies(config: RunConfig, prompts: Sequence[Prompt]) -> dict[str, Policy]:
    """The policies of a config, once the one that draws has accepted these prompts."""
    from grpokit.data import check_prompts
    from grpokit.runs import build

    policies = build.policies(config)
    check_prompts(build.drawing(policies), prompts)
    return policies


@contextmanager
def _ready(config: RunConfig, prompts: Sequence[Prompt]) -> Iterator[tuple[list[RewardTerm], dict[str, Policy]]]:
    """The rewards and the policies of a config, to draw and score these prompts."""
    from grpokit.runs import build, build_rewards

    build.check_prompts(config, prompts)
    terms = build_rewards.rewards(config)
    try:
        yield terms, _policies(config, prompts)
    finally:
        build_rewards.close(terms)


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


def _nested(summary: Mapping[str, float]) -> dict[str, dict[str, float | None]]:
    """Score -> its mean and the half-width of its 95 % interval, None if there is no number."""
    number = {key: value if math.isfinite(value) else None for key, value in summary.items()}
    return {key: {"mean": number[key], "ci95": number[f"{key}/ci95"]} for key in summary if f"{key}/ci95" in summary}
