"""The command that draws samples with a run's weights or a preset's: sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit.cli.app import app
from grpokit.cli.options import (
    ConfigCommand,
    Overrides,
    PromptLimit,
    Prompts,
    PromptsFile,
    RunOrPreset,
    SampleCount,
    prompts_of_options,
)
from grpokit.cli.runs import read_source
from grpokit.errors import UsageError, brief, plural

if TYPE_CHECKING:
    from grpokit.types import Sample

Before = Annotated[
    bool, typer.Option("--before", help="Also draw from the policy before training, with the same seeds.")
]
_TEXTS = 5  # drawn texts that a command shows
_PROMPTS = 16  # prompts that `sample` takes


@app.command(cls=ConfigCommand)
def sample(
    source: RunOrPreset,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", file_okay=False, help="Folder for the samples.")] = Path("samples"),
    prompt: Prompts = None,
    prompts: PromptsFile = None,
    count: SampleCount = None,
    limit: PromptLimit = None,
    before: Before = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write into a folder that already holds files.")
    ] = False,
) -> None:
    """Draw samples from a run's last checkpoint or from a preset.

    By default it draws one sample for each of the first 16 prompts. A preset's policy is untrained. With --before, the
    folders after and before hold samples of the trained and of the untrained policy. contact_sheet.png shows all
    pictures together.
    """
    config, place = read_source(source, overrides)
    if before and place is None:
        raise UsageError(f"--before needs a run folder, and {source} is not one. Remove --before.")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise UsageError(f"{out} already holds files. Choose another folder with --out, or add --overwrite.")
    from grpokit.data import check_prompts
    from grpokit.evaluation.held_out import draw
    from grpokit.files import writing
    from grpokit.run_folder import journal
    from grpokit.runs import build
    from grpokit.runs.contact_sheet import SHEET, contact_sheet
    from grpokit.training import checkpoint

    own_prompts = prompts_of_options(prompt, prompts, config.data.columns)
    if own_prompts is None:
        training, held_out = build.prompts(config)
        own_prompts = training if held_out is None else held_out
    drawn = own_prompts.first(limit or _PROMPTS)
    build.check_readable(config, drawn)
    policies = build.policies(config)
    check_prompts(build.evaluation_policy(policies), drawn)
    sheet: dict[str, Sequence[Sample]] = {}
    for folder, weights in ((out / "before", None), (out / "after", place)) if before else ((out, place),):
        if weights is not None:
            checkpoint.load_policies(weights, policies)
        samples = draw(
            build.evaluation_policy(policies),
            drawn,
            seed=config.seed,
            samples_per_prompt=count or 1,
            stream="sample",
            mixed_precision=config.trainer.mixed_precision,
        )
        sheet[folder.name] = samples
        journal.save_outputs(folder, samples)
        print(f"{plural(len(samples), 'sample')} in {folder}")
        _print_texts(samples)
    with writing(out):
        contact_sheet(sheet, out / SHEET)
    if (out / SHEET).is_file():
        print(f"contact sheet: {out / SHEET}")


def _print_texts(samples: Sequence[Sample]) -> None:
    """Print the first texts with their prompts; pictures are in their folder."""
    texts = [sample for sample in samples if isinstance(sample.output, str)]
    for sample in texts[:_TEXTS]:
        print(f"  {brief(sample.prompt.text, most=40)} -> {brief(sample.output, most=100)}")
    if len(texts) > _TEXTS:
        print(f"  and {len(texts) - _TEXTS:,} more")
