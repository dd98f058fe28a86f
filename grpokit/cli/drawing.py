"""The commands that draw with a run's weights or a preset's: sample, evaluate, attribute."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit.cli.app import app, console, grid
from grpokit.cli.options import (
    ConfigCommand,
    Count,
    Limit,
    Overrides,
    Prompts,
    PromptsFile,
    RunOrSource,
    read_prompts,
)
from grpokit.cli.runs import read
from grpokit.errors import UsageError, counted, reworded, shown

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


def _print_texts(samples: Sequence[Sample]) -> None:
    """Print the first texts with their prompts; pictures are in their folder."""
    texts = [sample for sample in samples if isinstance(sample.output, str)]
    for sample in texts[:_TEXTS]:
        print(f"  {shown(sample.prompt.text, most=40)} -> {shown(sample.output, most=100)}")
    if len(texts) > _TEXTS:
        print(f"  and {len(texts) - _TEXTS:,} more")
