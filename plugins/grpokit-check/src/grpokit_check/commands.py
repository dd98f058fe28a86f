"""The checks that every command of a plugin passes, `grpokit NAME`. The command is never run."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import typer
import typer.main

from grpokit.cli.app import own_commands
from grpokit.registry.specs import CommandSpec
from grpokit_check.check import Check, check_of, expect, light_plugin


def command_checks(
    function: Callable[..., Any], *, spec: CommandSpec | None = None, module: str | None = None
) -> Iterator[Check]:
    """Yield the checks of a command.

    Args:
        function: that Typer runs.
        spec: what its plugin announces.
        module: the plugin's module behind the entry point, which must import nothing heavy.
    """
    yield check_of(signature, function)
    if spec is not None:
        yield check_of(own_name, spec)
        yield check_of(summary, spec)
    if module is not None:
        yield check_of(light_plugin, module)


def signature(function: Callable[..., Any]) -> None:
    """Typer makes a command of the function's parameters, and its `--help` prints them."""
    program = typer.Typer(add_completion=False)
    program.command()(function)
    command = typer.main.get_command(program)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = command.main(["--help"], prog_name="grpokit", standalone_mode=False)
    expect(not code and printed.getvalue(), "a --help that prints the usage and ends with 0", f"the code {code}",
           "a callback that runs before --help is read")  # fmt: skip


def own_name(spec: CommandSpec) -> None:
    """No command of grpokit has the name: that one would be called."""
    expect(
        spec.name not in own_commands(),
        "a name that no command of grpokit has",
        f"'{spec.name}'",
        "a short name; add your package's name",
    )


def summary(spec: CommandSpec) -> None:
    """`grpokit --help` has a line to show."""
    expect(spec.summary.strip(), "a summary in the spec", "none", "only a docstring, which the list does not show")
