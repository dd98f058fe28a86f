"""The command line's application object, and what its commands share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpokit.errors import UsageError

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


def given_prompts(prompt: list[str] | None, prompts: Path | None) -> Sequence[Prompt] | None:
    """The prompts of --prompt and --prompts, or None where neither is given."""
    from grpokit import data

    if prompt and prompts:
        raise UsageError("Give either --prompt or --prompts, not both.")
    if prompt:
        return data.as_prompts(prompt)
    return data.read_text(prompts) if prompts else None


def parse_parameters(given: list[str]) -> dict[str, Any]:
    """KEY=VALUE words -> parameters; values are YAML."""
    import yaml

    from grpokit.config.yaml_source import parse_value

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


def console(*, stderr: bool = False) -> Console:
    """Where tables go: as wide as the terminal or COLUMNS says, or wide where the output is a file and nothing does."""
    from rich.console import Console

    made = Console(highlight=False, stderr=stderr)
    said = os.environ.get("COLUMNS", "")
    chosen = said.isdigit() and int(said) > 0
    return made if made.is_terminal or chosen else Console(highlight=False, width=160, stderr=stderr)
