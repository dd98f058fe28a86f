"""`grpokit attribute`: which random cause moves each reward."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit.cli import runs
from grpokit.cli.app import app, console
from grpokit.cli.config_options import ConfigCommand
from grpokit.cli.options import Limit, Overrides, RunOrSource
from grpokit.errors import UsageError, counted

if TYPE_CHECKING:
    from grpokit.evaluation.attribution import Shares


@app.command(cls=ConfigCommand)
def attribute(
    source: RunOrSource,
    overrides: Overrides = None,
    rows: Annotated[int, typer.Option("--rows", min=2, help="Draws of a sample's own.")] = 4,
    groups: Annotated[int, typer.Option("--groups", min=2, help="Draws of what a group shares.")] = 4,
    limit: Limit = None,
) -> None:
    """Say which random cause moves each reward.

    A sample draws for itself, and a group shares something. This draws a grid of --rows by --groups samples for each
    held-out prompt, with the weights of RUN_OR_PRESET, and shares out each reward's variance. For glm-image-ar the two
    causes are its visual tokens and the decoder's noise, so the larger share names the half to train next. What is
    found for a run is kept in its folder, and shown in its report.
    """
    config, folder = runs.read(source, overrides)
    from grpokit import registry, report
    from grpokit.data import check_prompts
    from grpokit.evaluation.attribution import attribute as attributed
    from grpokit.registry.specs import PolicySpec
    from grpokit.run_folder import journal
    from grpokit.runs import build, build_rewards
    from grpokit.training import checkpoint

    _, held_out = build.prompts(config)
    if held_out is None:
        raise UsageError("The config names no held-out prompts. Set data.eval_prompts or data.eval_fraction.")
    prompts = held_out.first(limit)
    build.check_prompts(config, prompts)
    spec = registry.spec_of("policy", config.policy.use)
    named = spec if isinstance(spec, PolicySpec) else PolicySpec(name="own", factory="own:policy")
    terms = build_rewards.rewards(config)
    try:
        policies = build.policies(config)
        check_prompts(build.drawing(policies), prompts)
        if folder is not None:
            checkpoint.load_policies(folder, policies)
        work = f"{counted(len(prompts) * rows * groups, 'sample')} of {counted(len(prompts), 'held-out prompt')}"
        print(f"drawing and scoring {work} ...", file=sys.stderr)
        shares = attributed(
            build.drawing(policies),
            terms,
            prompts,
            seed=config.seed,
            row_seeds=rows,
            group_seeds=groups,
            mixed_precision=config.trainer.mixed_precision,
        )
    finally:
        build_rewards.close(terms)
    _print_shares(shares, named.row_draws, named.group_draws)
    if folder is not None and runs.is_run(source):
        step = int(checkpoint.read_state(folder)["step"])
        journal.append_attribution(Path(source), step, shares, (named.row_draws, named.group_draws))
        print(f"report: {report.write(Path(source))}")


def _print_shares(shares: Mapping[str, Shares], row: str, group: str) -> None:
    """A table of the shares of each reward's variance inside prompts."""
    from rich.table import Table

    table = Table("reward", row, group, "both", "std", "prompts", box=None, pad_edge=False)
    for name, own in shares.items():
        parts = [f"{part:.0%}" for part in (own.row, own.group, own.both)] if own.variance else ["-"] * 3
        table.add_row(name, *parts, f"{own.variance**0.5:.3g}", str(own.prompts))
    console().print(table)
