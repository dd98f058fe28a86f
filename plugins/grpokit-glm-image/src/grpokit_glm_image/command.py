"""`grpokit attribute`: which of two random causes moves each reward of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from grpokit import PolicySpec, UsageError, registry
from grpokit.cli.app import console, grid
from grpokit.cli.options import Overrides, PromptLimit, RunOrPreset
from grpokit.cli.runs import read_source
from grpokit.errors import plural


def attribute(
    source: RunOrPreset,
    overrides: Overrides = None,
    rows: Annotated[int, typer.Option("--rows", min=2, help="Row seeds per prompt.")] = 4,
    groups: Annotated[int, typer.Option("--groups", min=2, help="Group seeds per prompt.")] = 4,
    limit: PromptLimit = None,
) -> None:
    """Show which source of randomness moves each reward.

    Some draws are a sample's own, others are shared by its group. This draws a grid of --rows by --groups samples for
    each held-out prompt, with the weights of RUN_OR_PRESET, and splits each reward's variance between the two. For
    glm-image-ar they are the visual tokens and the decoder's noise, so the larger share shows which half to train
    next. Results for a run are kept in its folder and shown in its report.
    """
    config, place = read_source(source, overrides)
    from grpokit import load, report
    from grpokit.run_folder.journal import append_attribution
    from grpokit.runs import build, build_rewards
    from grpokit_glm_image import attribution

    _, held_out = build.prompts(config)
    if held_out is None:
        raise UsageError("The config names no held-out prompts. Set eval.prompts or eval.fraction.")
    prompts = held_out.first(limit)
    build.check_readable(config, prompts)
    terms = build_rewards.rewards(config)
    try:
        policy = build.policy(config) if place is None else load(source, overrides=overrides or [])
        samples = f"{plural(rows * groups * len(prompts), 'sample')} of {plural(len(prompts), 'held-out prompt')}"
        print(f"drawing and scoring {samples} ...", file=sys.stderr)
        shares = attribution.attribute(
            policy,
            terms,
            prompts,
            seed=config.seed,
            row_seeds=rows,
            group_seeds=groups,
            mixed_precision=config.trainer.mixed_precision,
        )
    finally:
        build_rewards.close(terms)
    spec = registry.spec_of("policy", config.policy.use)
    named = spec if isinstance(spec, PolicySpec) else PolicySpec
    causes = named.row_draws, named.group_draws
    table = []
    for name, own in shares.items():
        parts = [f"{part:.0%}" for part in (own.row, own.group, own.both)] if own.variance else ["-"] * 3
        table.append([name, *parts, f"{own.variance**0.5:.3g}", str(own.prompts)])
    console().print(grid(["reward", *causes, "both", "std", "prompts"], table))
    if place is not None and (Path(source) / "config.yaml").is_file():  # no checkpoint, but the run itself
        append_attribution(Path(source), place, {name: vars(own) for name, own in shares.items()}, causes)
        print(f"report: {report.write(Path(source))}")
