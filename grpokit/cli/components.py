"""The commands about what is installed: plugins, schema, doctor."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit.cli.app import FAILED, app, console, own_commands, printable
from grpokit.cli.options import Json
from grpokit.errors import UsageError, address, nearest, plural

if TYPE_CHECKING:
    from grpokit.cli.catalogue import Row

_YOURS = """`grpokit new reward NAME` writes a package with a reward of your own: {address}
Packages of others have the keyword grpokit-plugin: https://pypi.org/search/?q=grpokit-plugin"""


@app.command()
def plugins(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Show these components with their parameters.")
    ] = None,
    search: Annotated[
        str, typer.Option(metavar="WORD...", help="Search what is installed and what pip can add for these words.")
    ] = "",
    kind: Annotated[str, typer.Option(help="Only of this kind, such as reward or preset.")] = "",
    as_json: Json = False,
) -> None:
    """List rewards, policies, presets and other components.

    The installed ones of each kind come first, then those that pip can add. A name that clashes and a plugin that is
    broken are marked. Presets say what they need and how long they take. With a name it shows what the component needs,
    its parameters with their defaults and meanings, and an example to paste; of a preset or an evaluation its text.
    """
    from grpokit.cli import catalogue

    known = dict.fromkeys([*catalogue.GROUPS, *catalogue.kinds()])
    if kind and kind not in known:
        raise UsageError(f"There is no kind '{kind}'{nearest(kind, known)}. Kinds: {', '.join(known)}.")
    if names and not search:
        _show_components(names, kind, as_json)
        return
    rows = catalogue.rows(own_commands())
    if search:
        _search([search, *(names or ())], rows, kind, as_json)
        return
    rows = [row for row in rows if kind in ("", row.kind, row.group)]
    if as_json:
        _print_json(row for row in rows if row.state != "not installed")  # programs ask what they can use
    else:
        _print_rows(rows)
        print("`grpokit plugins NAME` shows an example; `--kind` and `--search WORD` list less.")
        _print_problems()


def _search(words: Sequence[str], known: Sequence[Row], kind: str, as_json: bool) -> None:
    """Those that have the most of some words, or what to do without any."""
    from grpokit.cli.search import packages_of_plugins, search, silent, terms

    packages, wanted = packages_of_plugins(), terms(words)
    rows = [row for row in (*known, *silent(packages)) if kind in ("", row.kind, row.group)]
    found, most = search(wanted, rows, packages)
    if as_json:
        _print_json(found)
        return
    _print_rows(found)
    asked = " ".join(words)
    if not found:
        guesses = "".join(nearest(word, {row.name for row in rows}) for word in asked.split())
        print(f"No name, summary or keyword of {plural(len(rows), 'component')} has '{asked}'{guesses}.")
    elif most < len(wanted):
        print(f"Nothing has all of '{asked}'. These have {most} of {len(wanted)} words.")
    for row in found:
        if row.state == "announces nothing":
            print(f"{row.package} has no entry point in the group 'grpokit', so grpokit cannot use it.")
    if {"broken", "refused", "ambiguous", "hidden"} & {row.state for row in found}:
        _print_problems()
    print(_YOURS.format(address=address("plugins")))


def _print_json(rows: Iterable[Row]) -> None:
    hidden = ("group", "words")
    facts = [{key: value for key, value in dataclasses.asdict(row).items() if key not in hidden} for row in rows]
    print(json.dumps(facts))


def _print_rows(rows: Iterable[Row]) -> None:
    """A line for each, below the title of its group; cut to the width of the screen, if there is one."""
    from rich.text import Text

    from grpokit.cli.catalogue import GROUPS

    screen = console()
    has_width = screen.is_terminal or os.environ.get("COLUMNS")
    lines: list[Text] = []
    for group, members in itertools.groupby(rows, key=lambda row: row.group):
        title, use = GROUPS.get(group, (f"{group}s".capitalize(), ""))
        lines.append(Text.assemble((title, "bold"), f", as in `{use}`" if use else ""))
        of_group = list(members)
        width = max(len(_label(row)) for row in of_group)
        for install, some in itertools.groupby(of_group, key=lambda row: row.install):
            style = "dim" if install else ""
            if install:
                lines.append(Text(f"  not installed: {install}", style))
            lines += [Text(f"{_label(row):<{width}}  {_about(row)}", style) for row in some]
        lines.append(Text())
    for line in lines:
        if has_width:
            line.truncate(screen.width, overflow="ellipsis")
        screen.print(line, soft_wrap=True)


def _label(row: Row) -> str:
    return f"    {row.name}" if row.install else f"  {row.name}"


def _about(row: Row) -> str:
    """What a component does; before that what is wrong with its name, and its package unless that is grpokit's own."""
    from grpokit.registry import shipped

    ours = row.package == shipped.owner(row.kind, row.name)
    origin = "" if ours else f"{row.package} {row.version}: "
    mark = "" if row.state in ("ok", "not installed") else f"{row.state}: "
    return printable(f"{origin}{mark}{row.summary}")


def _print_problems() -> None:
    from grpokit import registry

    for what, advice in registry.clashes(own_commands()):
        print(f"{what[0].upper()}{what[1:]}. {advice}")
    for plugin in registry.plugins():
        for problem in plugin.problems:
            print(f"{plugin.name}: {problem}")


def _show_components(names: Iterable[str], only: str, as_json: bool) -> None:
    """All components with these names, of any kind."""
    from grpokit import registry
    from grpokit.cli import catalogue, component_page
    from grpokit.registry import shipped

    facts = []
    for name in names:
        kinds = [kind for kind in catalogue.kinds() if only in ("", kind)] or catalogue.kinds()
        here = [component_page.facts(kind, name) for kind in kinds if registry.named(kind, name)]
        elsewhere = [component_page.facts_elsewhere(kind, name) for kind in kinds if shipped.install(kind, name)]
        if not (here or elsewhere):
            raise registry.unknown(name, *kinds)
        facts += here or elsewhere
    if as_json:
        print(json.dumps(facts, default=repr))
        return
    print("\n\n".join("\n".join(component_page.lines(about)) for about in facts))


@app.command()
def schema() -> None:
    """Print the JSON schema of a config, for editors.

    It holds every key with its type, default and meaning. `grpokit plugins NAME` shows the parameters of a component.
    """
    from grpokit.config.schema import RunConfig

    print(json.dumps(RunConfig.model_json_schema(), indent=2))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Examine this environment and say what to fix.

    It looks at packages, plugins, weights and torch, and trains a tiny policy. It takes less than a minute and fetches
    nothing. The exit code is 1 if something is wrong.
    """
    from grpokit.doctor.environment import examine

    findings = []
    for finding in examine(own_commands()):
        findings.append(finding)
        if not as_json:
            print(f"{finding.state:<8} {finding.area:<11} {finding.what}", flush=True)
            if finding.advice:
                print(textwrap.indent(finding.advice, " " * 21))
    counts = Counter(finding.state for finding in findings)
    problems = counts["problem"]
    if as_json:
        print(json.dumps({"healthy": not problems, "findings": [*map(dataclasses.asdict, findings)]}, indent=2))
    else:
        words = plural(problems, "problem") if problems else "healthy"
        print(f"{words}, {plural(counts['note'], 'note')}; see {address('doctor')}")
    if problems:
        raise typer.Exit(FAILED)
