"""Arguments and options that several commands share, each declared once, and what a command with a config is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from grpokit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grpokit.data import PromptSequence

PresetOrFile = Annotated[
    str, typer.Argument(metavar="PRESET_OR_FILE", help="A preset's name, a config file, or a run folder.")
]
"""The argument that names a config; `grpokit.config.presets.read_config` reads it."""
RunOrPreset = Annotated[
    str,
    typer.Argument(metavar="RUN_OR_PRESET", help="A run folder or one of its checkpoints, a preset, a config file."),
]
"""The argument that names a config and perhaps trained weights; `grpokit.cli.runs.read_source` reads it."""
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the config, as in trainer.steps=50.")
]
"""The words behind it that change the config; the command's spec says `config=True`."""
SampleCount = Annotated[int | None, typer.Option("-n", "--count", min=1, help="Samples per prompt.")]
PromptLimit = Annotated[int | None, typer.Option("--limit", min=1, help="The most prompts to take.")]
"""The option for fewer prompts than the config has."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
"""The option that asks for JSON."""
Prompts = Annotated[list[str] | None, typer.Option("--prompt", help="A prompt; may be given several times.")]
"""The option that gives prompts one by one; `read_prompts` reads it."""
PromptsFile = Annotated[
    Path | None,
    typer.Option("--prompts", help="A file of prompts: lines of text, JSON lines, CSV and more, as data.prompts."),
]
"""The option that names a file of prompts; `read_prompts` reads it."""
_USUAL = (
    "trainer.steps, trainer.prompts_per_step, trainer.group_size, trainer.micro_batch_size, trainer.learning_rate, "
    "trainer.objective, eval.every, run.dir, run.save_every, trackers.use, seed"
)


def prompts_of_options(
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


class ConfigCommand(TyperCommand):
    """A command with KEY=VALUE words that change a config."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command.

        Raises:
            UsageError: an unknown option has the name of a config key.
        """
        from grpokit.config.mistakes import key_for
        from grpokit.config.schema import RunConfig

        known = {name for parameter in self.params for name in parameter.opts} | {"--help"}
        for name in (word.partition("=")[0] for word in args if word.startswith("--")):
            hint = "" if name in known else key_for(name.removeprefix("--").rpartition(".")[2], RunConfig)
            if hint:
                raise UsageError(
                    f"There is no option {name}{hint}. Write a setting of the run as KEY=VALUE without dashes, "
                    "such as trainer.learning_rate=1e-4."
                )
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the installed presets and the usual keys below the options."""
        from grpokit import registry

        names = ", ".join(dict.fromkeys(spec.name for _, spec in registry.installed("preset")))
        for lines in (f"Presets: {names} (see `grpokit plugins`).", f"Usual keys: {_USUAL} (see `grpokit schema`)."):
            formatter.write_paragraph()
            formatter.write_text(lines)
