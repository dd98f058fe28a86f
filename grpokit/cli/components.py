"""The commands about components: plugins, check, schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit.cli.app import app, console, given_prompts, parse_parameters
from grpokit.errors import UsageError, counted

if TYPE_CHECKING:
    from warnings import WarningMessage

    from grpokit.testing import Climb, Outcome


_WIDE = 100  # columns from which on a table has room for what a component does


@app.command()
def plugins() -> None:
    """List what is installed: policies, rewards, presets.

    Also advantages and objectives; each with the package that brings it, and what is broken or ambiguous.
    """
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from grpokit import registry

    rows = list(_plugin_rows())
    out = console()
    if out.width >= _WIDE:
        table = Table(box=None, pad_edge=False)
        for title in ("kind", "name", "package", "version", "state"):
            table.add_column(title, no_wrap=True)
        table.add_column("what it does")
        for *names, state, summary in rows:  # as Text: a plugin's own brackets are no markup
            table.add_row(*map(Text, names), Text(state, style=_STYLES.get(state, "")), Text(summary))
        out.print(table)
    else:
        kind_width, name_width = (max(len(row[i]) for row in rows) for i in (0, 1))
        for kind, name, package, version, state, summary in rows:
            start = f"{kind:<{kind_width}}  {name:<{name_width}}  {package} {version}  "
            line = Text(start).append(state, style=_STYLES.get(state, ""))
            out.print(line, soft_wrap=True)
            out.print(Padding(Text(summary), (0, 0, 0, kind_width + 2)))
    for clash in registry.clashes():
        choices = " or ".join(f"'{name}' (of {package})" for name, package in clash.choices.items())
        out.print(f"The {clash.kind} name '{clash.name}' is ambiguous: write {choices}.", markup=False, soft_wrap=True)
    for plugin in registry.plugins():
        if plugin.error:
            out.print(f"{plugin.name}: {plugin.error}", markup=False, soft_wrap=True)


_STYLES = {"ambiguous": "yellow", "broken": "red"}


def _plugin_rows() -> Iterator[tuple[str, str, str, str, str, str]]:
    """Kind, name, package, version, state and summary of everything that plugins bring."""
    from grpokit import registry

    ambiguous = {(clash.kind, clash.name) for clash in registry.clashes()}
    for kind in ("policy", "reward", "preset", "advantage", "objective"):
        for plugin, spec in registry.installed(kind):
            state = "ambiguous" if (kind, spec.name) in ambiguous else "ok"
            yield kind, spec.name, plugin.package, plugin.version, state, spec.summary
    for plugin in registry.plugins():
        if plugin.error:
            yield "plugin", plugin.name, plugin.package, plugin.version, "broken", "see below"
        elif not plugin.specs:
            yield "plugin", plugin.name, plugin.package, plugin.version, "ok", "watches runs"


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A policy or reward: its name, or package.module:Name.")],
    parameters: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its parameters, as in temperature=0.7.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="policy or reward, where NAME could be both.")] = None,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", help="A prompt for a policy; give two.")] = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", help="A file with one prompt per line.")] = None,
    slow: Annotated[bool, typer.Option("--slow", help="Also check that a policy learns a toy reward.")] = False,
) -> None:
    """Check a policy or a reward against its contract.

    A reward also climbs a ladder, which grades how easily it is fooled.
    """
    import warnings

    from rich.table import Table
    from rich.text import Text

    from grpokit.testing import by_name, outcomes

    climb = None
    given = given_prompts(prompt, prompts)
    params = parse_parameters(parameters or [])
    with warnings.catch_warnings(record=True) as warned:  # they go below the table
        if by_name.kind_of(name, kind) == "policy":
            some = given if prompts is None or given is None else given[:4]
            checks = by_name.of_policy(name, params, some, slow=slow)
        else:
            if given:
                raise UsageError(
                    f"'{name}' is a reward, which reads no prompts: leave --prompt and --prompts out, or say --kind "
                    "policy where it makes a policy."
                )
            checks, climb = by_name.of_reward(name, params)
        found = list(outcomes(checks))
        report = "" if climb is None else _graded(climb, found)
    table = Table(box=None, pad_edge=False)
    table.add_column("check", max_width=40)
    table.add_column("result", no_wrap=True)
    table.add_column("message")
    for outcome in _folded(found):
        style = {"ok": "", "failed": "red"}.get(outcome.state, "yellow")
        table.add_row(Text(outcome.name), Text(outcome.state, style=style), Text(outcome.message))
    out = console()
    out.print(table)
    for line in _heard(warned):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    if report:
        out.print(f"\n{report}\n", markup=False, highlight=False, soft_wrap=True)
    passed, failed, weak, skipped = (
        sum(outcome.state == state for outcome in found)
        for state in ("ok", "failed", "expected failure", "not checked")
    )
    said = [f"{failed} of {passed + failed} checks failed" if failed else f"all {passed} checks passed"]
    said += [counted(weak, "expected failure")] if weak else []
    said += [f"{skipped} not checked"] if skipped else []
    print(f"{name}: {', '.join(said)}")
    if failed:
        raise typer.Exit(1)


def _folded(found: Sequence[Outcome]) -> Iterator[Outcome]:
    """Outcomes with what was not checked for one reason in one row."""
    from grpokit.testing import Outcome

    names: dict[str, list[str]] = {}
    for outcome in found:
        if outcome.state == "not checked":
            names.setdefault(outcome.message, []).append(outcome.name)
    for outcome in found:
        if outcome.state != "not checked":
            yield outcome
        elif outcome.message in names:  # the first of its reason
            yield Outcome(name=", ".join(names.pop(outcome.message)), state=outcome.state, message=outcome.message)


def _heard(warned: Iterable[WarningMessage]) -> Iterator[str]:
    """What was warned of, each once, and nothing about a library's future."""
    future = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
    told = (w for w in warned if not issubclass(w.category, future))
    yield from dict.fromkeys(f"warning: {w.category.__name__}: {' '.join(str(w.message).split())}" for w in told)


def _graded(climb: Climb, found: Sequence[Outcome]) -> str:
    """The report of a ladder; a reward that raises while it climbs has failed checks that say so."""
    from grpokit.testing.reward.trial import UNSCORED

    if any(outcome.message == UNSCORED for outcome in found):
        return f"ladder: not climbed, since {UNSCORED}"
    try:
        return f"ladder\n{climb.report}"
    except (Exception, SystemExit) as error:
        return f"ladder: not climbed, since the reward raised {type(error).__name__}"


@app.command()
def schema() -> None:
    """Print the JSON schema of a config, for editors.

    It holds every key with its type, default and meaning.
    """
    from grpokit.config import schema

    print(schema.schema())
