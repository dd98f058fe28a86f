"""The command line's entry point and application object, and what its commands share."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit.errors import GrpokitError, address

if TYPE_CHECKING:
    from rich.console import Console

FAILED, INTERRUPTED = 1, 130  # exit codes, beside those of errors, which have their own

app = typer.Typer(
    help="Post-train image generators, and any other stochastic generator, with GRPO.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(print_it: bool) -> None:
    if print_it:
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


def main() -> None:
    """Entry point of the `grpokit` command: an error of grpokit's is one message and its exit code, no traceback."""
    warnings.formatwarning = _on_one_line
    sys.path.append(os.getcwd())  # so that a config can name `my_rewards:brightness` in a file beside it
    try:
        app()
    except GrpokitError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.page:
            print(f"see {address(error.page)}", file=sys.stderr)
        sys.exit(error.exit_code)


def _on_one_line(message: Warning | str, *where: object, **further: object) -> str:
    """A warning for somebody who typed a command: without the line of code that gave it."""
    return f"warning: {' '.join(str(message).split())}\n"


def console(*, stderr: bool = False) -> Console:
    """Where tables go: as wide as the terminal or COLUMNS says, and 160 columns where neither says anything."""
    from rich.console import Console

    screen = Console(highlight=False, stderr=stderr)
    columns = os.environ.get("COLUMNS", "")
    has_width = screen.is_terminal or (columns.isdigit() and int(columns) > 0)
    return screen if has_width else Console(highlight=False, width=160, stderr=stderr)
