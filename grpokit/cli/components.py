"""The commands about components: plugins, check, schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpokit.cli.app import app, console, given_prompts, parse_parameters
from grpokit.errors import UsageError


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
    """Check a policy or a reward against its contract."""
    from rich.table import Table
    from rich.text import Text

    from grpokit import checking
    from grpokit.testing import find, outcomes

    given = given_prompts(prompt, prompts)
    params = parse_parameters(parameters or [])
    if find.kind_of(name, kind) == "policy":
        checks = checking.of_policy(name, params, given if prompts is None or given is None else given[:4], slow=slow)
    else:
        if given:
            raise UsageError(f"'{name}' is a reward, which reads no prompts: leave --prompt and --prompts out.")
        checks = checking.of_reward(name, params)
    table = Table("check", "result", "message", box=None, pad_edge=False)
    failed = 0
    for outcome in outcomes(checks):
        failed += not outcome.ok
        state = Text("ok" if outcome.ok else "failed", style="" if outcome.ok else "red")
        table.add_row(Text(outcome.name), state, Text(outcome.message))
    console().print(table)
    print(
        f"{name}: {failed} of {table.row_count} checks failed"
        if failed
        else f"{name}: all {table.row_count} checks passed"
    )
    if failed:
        raise typer.Exit(1)


@app.command()
def schema() -> None:
    """Print the JSON schema of a config, for editors."""
    from grpokit import config

    print(config.schema())
