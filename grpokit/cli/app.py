"""The command line's entry point and application object, and what its commands share."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import time
import warnings
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
import typer.core
import typer.main

from grpokit import registry
from grpokit.cli import display
from grpokit.cli.options import ConfigCommand
from grpokit.errors import GrpokitError, PluginError, UsageError, address
from grpokit.registry.shipped import commands
from grpokit.registry.specs import CommandSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from rich.console import Console
    from rich.table import Table

FAILED, INTERRUPTED = 1, 130  # exit codes, beside those of errors, which have their own

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # a terminal would obey those of a prompt
_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class Commands(typer.core.TyperGroup):
    """The core's commands and those of plugins; a plugin's command is imported when it is called.

    Help lists those of installed plugins, and those of grpokit's own plugins, installed or not.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, those of plugins last."""
        return [*self.commands, *_of_plugins(self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command; for a plugin's command, only its entry in the list of commands."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        summary = _of_plugins(self.commands).get(cmd_name)
        return None if summary is None else typer.core.TyperCommand(cmd_name, help=summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called, and what follows it.

        Raises:
            PluginError: it comes with a plugin that is not installed or cannot be imported.
        """
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        if registry.named("command", args[0]):
            _, spec = registry.find("command", args[0])
            program = typer.Typer(**_SETTINGS)
            changes_config = isinstance(spec, CommandSpec) and spec.config
            program.command(spec.name, cls=ConfigCommand if changes_config else None)(
                registry.resolve(spec.factory, f"command '{spec.name}'", spec.install)
            )
            return args[0], typer.main.get_command(program), args[1:]
        if registry.refusals(args[0], "command"):
            raise registry.unknown(args[0], "command")
        if remedy := registry.remedy("command", args[0]):
            raise PluginError(f"The plugin of this command is not installed.{remedy}")
        return super().resolve_command(ctx, args)


def _of_plugins(own: Collection[str]) -> dict[str, str]:
    """The commands of plugins with their summaries, those that can be called first.

    A command whose name is also one of grpokit's `own` or another plugin's has its distribution in front.
    """
    summaries = {}
    for owned in registry.installed("command"):
        _, spec = owned
        clashes = spec.name in own or len(registry.named("command", spec.name)) > 1
        name = registry.full_name(owned) if clashes else spec.name
        summaries[name] = spec.summary
    elsewhere = {name: summary for name, summary in commands().items() if name not in summaries}
    return summaries | elsewhere


app = typer.Typer(
    cls=Commands,
    help="Post-train image generators, and any other stochastic generator, with GRPO.",
    no_args_is_help=True,
    **_SETTINGS,
)


def own_commands() -> Collection[str]:
    """The names of grpokit's own commands, which those of plugins cannot take."""
    return typer.main.get_group(app).commands


def _version(print_it: bool) -> None:
    if print_it:
        import grpokit

        print(grpokit.__version__)
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    command = f"{context.invoked_subcommand}{' --dry-run' * ('--dry-run' in sys.argv)}"
    if command != "train" and process_count() > 1:
        raise UsageError(f"grpokit {command} runs in one process. Start it without torchrun.")


def process_count() -> int:
    """The number of processes that torchrun started to train together."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def is_first() -> bool:
    """Whether this process prints: rank 0 among those of torchrun, or the only process."""
    return process_count() <= 1 or os.environ.get("RANK", "0") == "0"


def main() -> None:
    """Entry point of the `grpokit` command: grpokit's own errors print one message and no traceback."""
    display.prepare_streams()
    if "OMP_WAIT_POLICY" not in os.environ:  # torch's threads, which wait for each other, spin less on a busy machine
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    warnings.formatwarning = _on_one_line
    # peft imports bitsandbytes, which on some CPUs names a missing product that `quantized.steady` keeps it from using.
    logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(lambda record: "gemm_4bit_forward" not in record.msg)
    home = os.path.expanduser("~")  # which shells leave as it is in --dir=~/runs
    for place, word in enumerate(sys.argv):
        if word.startswith("--"):
            sys.argv[place] = word.replace("=~/", f"={home}/", 1)
    try:
        sys.path.append(_working_folder())  # so that a config can name `my_rewards:brightness` in a file beside it
        app()
    except GrpokitError as error:
        if not _another_says(error):
            print(f"error: {error}", file=sys.stderr)
            if error.page:
                print(f"see {address(error.page)}", file=sys.stderr)
        _end(error.exit_code)
    except SystemExit as end:
        if isinstance(end.code, int):
            _end(end.code or (0 if display.complete() else FAILED))
        raise


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError("The working folder of this shell no longer exists. Change into another one.") from error


def _end(code: int) -> NoReturn:
    """Exit. With other processes, PyTorch is not shut down first: its threads would abort this process."""
    if (distributed := sys.modules.get("torch.distributed")) and distributed.is_initialized():
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _another_says(error: GrpokitError) -> bool:
    """Whether process 0 prints this error too; it gets time for that, since torchrun ends all after the first exit."""
    if is_first():
        return False
    if "grpokit.processes.team" not in sys.modules:  # only the command line and its files were read
        if os.environ.get("LOCAL_RANK") != "0":
            time.sleep(2)  # torchrun ends this process meanwhile if the machine's first one has found the same in them
        return False
    from grpokit.processes.team import all_know, wait_for_first

    if not all_know(error):
        return False
    wait_for_first()
    return True


def _on_one_line(message: Warning | str, *where: object, **further: object) -> str:
    """A warning on the command line: without the line of code that raised it."""
    return f"warning: {' '.join(str(message).split())}\n"


def console(*, stderr: bool = False) -> Console:
    """The console for tables: as wide as the terminal or COLUMNS, else 160 columns."""
    from rich.console import Console

    screen = Console(highlight=False, stderr=stderr)
    if not (screen.is_terminal or os.environ.get("COLUMNS")):
        screen.width = 160
    return screen


def printable(text: str) -> str:
    """The text without characters that a terminal would obey."""
    return _CONTROL.sub("", text)


def grid(titles: Iterable[str], rows: Iterable[Iterable[str]], *, words: Collection[str] = ()) -> Table:
    """A table of numbers after a name.

    Args:
        titles: of the columns; the first holds the names.
        rows: a text for each column.
        words: titles of further columns without numbers.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    lines = [list(map(printable, row)) for row in rows]
    for place, title in enumerate(titles):
        number = place > 0 and title not in words
        width = max((len(line[place]) for line in lines), default=0) if number else None
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(Text(title), justify=justify, min_width=width, overflow="fold", vertical="bottom")
    for line in lines:
        table.add_row(*map(Text, line))  # as Text: brackets in it are no markup
    return table
