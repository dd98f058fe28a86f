"""Arguments and options that several commands share, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grpokit.data import PromptSequence

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
Count = Annotated[int | None, typer.Option("-n", "--count", min=1, help="Samples per prompt.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="The most prompts to take.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Prompts = Annotated[list[str] | None, typer.Option("--prompt", help="A prompt; may be given several times.")]
PromptsFile = Annotated[
    Path | None,
    typer.Option("--prompts", help="A file of prompts: lines of text, JSON lines, CSV and more, as data.prompts."),
]


def read_prompts(
    prompt: list[str] | None, prompts: Path | None, columns: Mapping[str, str | None] | None = None
) -> PromptSequence | None:
    """The prompts of --prompt or --prompts, or None without either option; `columns` are the config's.

    Raises:
        UsageError: both are given, or the file cannot be read.
    """
    from grpokit import data

    if prompt and prompts:
        raise UsageError("Give either --prompt or --prompts, not both.")
    if prompt:
        return data.as_prompts(prompt, source="--prompt")
    return None if prompts is None else data.read_prompts(prompts, columns=columns)
