"""The commands about components: plugins, check, schema."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit.cli.app import app, console, given_prompts, parse_parameters
from grpokit.errors import UsageError, counted

if TYPE_CHECKING:
    from grpokit.testing import Climb


@app.command()
def plugins() -> None:
    """List policies, rewards and presets with the package that brings each, and what is broken."""
    from rich.table import Table
    from rich.text import Text

    from grpokit import registry

    found = registry.plugins()
    table = Table(box=None, pad_edge=False)
    for title in ("kind", "name", "package", "version", "state"):
        table.add_column(title, no_wrap=True)
    table.add_column("what it does")  # the only one that a narrow terminal breaks

    def row(kind: str, name: str, plugin: registry.Plugin, state: str, text: str) -> None:
        cells = (kind, name, plugin.package, plugin.version)  # as Text: a plugin's own brackets are no markup
        table.add_row(*map(Text, cells), Text(state, style="" if state == "ok" else "red"), Text(text))

    for kind in ("policy", "reward", "preset", "advantage", "objective"):
        for plugin, spec in registry.specs(kind):
            row(kind, spec.name, plugin, "ok", spec.summary)
    for plugin in found:
        if plugin.error:
            row("plugin", plugin.name, plugin, "broken", "see below")
        elif not plugin.specs:
            row("plugin", plugin.name, plugin, "ok", "watches runs")
    out = console()
    out.print(table)
    for plugin in found:
        if plugin.error:
            out.print(f"{plugin.name}: {plugin.error}", markup=False, soft_wrap=True)


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
    """Check a policy or a reward against its contract; a reward also climbs a ladder and is graded."""
    from rich.table import Table
    from rich.text import Text

    from grpokit import checking
    from grpokit.testing import find, outcomes

    climb = None
    given = given_prompts(prompt, prompts)
    params = parse_parameters(parameters or [])
    if find.kind_of(name, kind) == "policy":
        checks = checking.of_policy(name, params, given if prompts is None or given is None else given[:4], slow=slow)
    else:
        if given:
            raise UsageError(f"'{name}' is a reward, which reads no prompts: leave --prompt and --prompts out.")
        checks, climb = checking.of_reward(name, params)
    table = Table("check", "result", "message", box=None, pad_edge=False)
    found = list(outcomes(checks))
    for outcome in found:
        style = {"ok": "", "failed": "red"}.get(outcome.state, "yellow")
        table.add_row(Text(outcome.name), Text(outcome.state, style=style), Text(outcome.message))
    out = console()
    out.print(table)
    if climb is not None:
        out.print(f"\n{_graded(climb)}\n", markup=False, highlight=False, soft_wrap=True)
    passed, failed, weak, skipped = (
        sum(outcome.state == state for outcome in found) for state in ("ok", "failed", "weakness", "not checked")
    )
    said = [f"{failed} of {passed + failed} checks failed" if failed else f"all {passed} checks passed"]
    said += [counted(weak, "known weakness")] if weak else []
    said += [f"{skipped} not checked"] if skipped else []
    print(f"{name}: {', '.join(said)}")
    if failed:
        raise typer.Exit(1)


def _graded(climb: Climb) -> str:
    """The report of a ladder; a reward that raises while it climbs has failed checks that say so."""
    try:
        return f"ladder\n{climb.report}"
    except Exception as error:
        return f"ladder: not climbed, since the reward raised {type(error).__name__}"


@app.command()
def schema() -> None:
    """Print the JSON schema of a config, for editors."""
    from grpokit import config

    print(config.schema())
