"""`grpokit check`: the checks of a component by its name, as a table, as JSON or as a badge."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import typer
from rich.status import Status
from rich.table import Table
from rich.text import Text

from grpokit import UsageError, registry
from grpokit.cli.app import console
from grpokit.cli.options import Json, Prompts, PromptsFile, prompts_of_options
from grpokit.config.overrides import parse_parameters
from grpokit.errors import plural

if TYPE_CHECKING:
    from grpokit_check import Check, LadderReport, Outcome


def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A component's name, or package.module:Name.")],
    parameters: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its parameters, as in temperature=0.7.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="policy, reward, objective, ..., if several components have this NAME.")
    ] = None,
    prompt: Prompts = None,
    prompts: PromptsFile = None,
    as_json: Json = False,
    badge: Annotated[bool, typer.Option("--badge", help="Print a line for a README, and nothing else.")] = False,
) -> None:
    """Check a component against its contract.

    A policy draws samples for the prompts you give (two or more), or for those of a preset that uses it. A reward
    scores outputs to the prompts you give, or its own examples, and the command also measures how easily it is fooled.
    The other kinds need nothing.
    """
    from grpokit_check import component  # only now: it imports torch, which takes seconds

    ladder = None
    own_prompts = prompts_of_options(prompt, prompts)
    params = parse_parameters(parameters or [])
    with (
        warnings.catch_warnings(record=True) as records,  # they are printed below the table
        console(stderr=True).status(f"building {name}", spinner="line") as status,
        ExitStack() as stack,
    ):
        kind = component.kind_of(name, "reward" if kind is None and "placement" in params else kind)
        if own_prompts and kind not in ("policy", "reward"):
            raise UsageError(f"'{name}' is neither policy nor reward, so it reads no prompts. Leave out --prompt(s).")
        first = own_prompts if prompts is None or own_prompts is None else own_prompts[:4]
        if kind == "policy":
            checks = component.of_policy(name, params, first)
        elif kind != "reward":
            checks = component.of_component(kind, name, params)
        else:
            checks, ladder = stack.enter_context(component.of_reward(name, params, first))
        results = list(_run(checks, status))
        report = "" if ladder is None or as_json or badge else _report(ladder, results)
    warned = list(_warning_lines(records))
    failures = sum(outcome.failed for outcome in results)
    if as_json:
        facts = {"name": name, "kind": kind, **_versions(kind, name), "passed": not failures}
        print(json.dumps({**facts, "checks": [*map(dataclasses.asdict, results)], "warnings": warned}))
    elif badge:
        print(_badge(results))
    else:
        _print_results(results)
        for line in [*warned, *([f"\n{report}\n"] if report else [])]:
            print(line)
        print(f"{name}: {_summary(results)}")
    if failures:
        raise typer.Exit(1)


def _versions(kind: str, name: str) -> dict[str, str]:
    """The versions of grpokit, and of the package that brings a component; empty where none does."""
    plugin = registry.find(kind, name)[0] if registry.named(kind, name) else None
    own = {"package": plugin.package, "version": plugin.version} if plugin else {"package": "", "version": ""}
    return {"grpokit": version("grpokit"), **own}


def _badge(results: Sequence[Outcome]) -> str:
    """A badge of shields.io in Markdown; the reader's browser fetches it."""
    failures = sum(outcome.failed for outcome in results)
    passes = sum(outcome.ok for outcome in results)
    words = f"{failures} checks failed" if failures else f"{passes} checks passed"
    address = f"https://img.shields.io/badge/grpokit-{words.replace(' ', '_')}-{'red' if failures else 'brightgreen'}"
    return f"![grpokit: {words}]({address})"


def _summary(results: Sequence[Outcome]) -> str:
    """How many checks passed, failed and were not run."""
    counts = Counter(outcome.state for outcome in results)
    passes, failures = counts["ok"], counts["failed"]
    summary = [f"{failures} of {passes + failures} checks failed" if failures else f"all {passes} checks passed"]
    summary += [plural(counts["expected failure"], "expected failure")] if counts["expected failure"] else []
    summary += [f"{counts['not checked']} not checked"] if counts["not checked"] else []
    return ", ".join(summary)


def _run(checks: Iterable[Check], status: Status) -> Iterator[Outcome]:
    """Run the checks one after the other; a terminal shows which one runs."""
    from grpokit_check import outcomes

    every = list(checks)
    for number, check in enumerate(every, 1):
        status.update(f"check {number} of {len(every)}: {check.name}")
        yield from outcomes([check])


def _print_results(results: Sequence[Outcome]) -> None:
    """A row for each check; those that were not made for the same reason share the row of the first."""
    table = Table(box=None, pad_edge=False)
    table.add_column("check", max_width=40)
    table.add_column("result", no_wrap=True)
    table.add_column("message")
    rows: dict[tuple[str, ...], list[str]] = {}
    for outcome in results:
        alike = () if outcome.state == "not checked" else (outcome.name,)
        rows.setdefault((outcome.state, outcome.message, *alike), []).append(outcome.name)
    for (state, message, *_), names in rows.items():
        style = {"ok": "", "failed": "red"}.get(state, "yellow")
        table.add_row(Text(", ".join(names)), Text(state, style=style), Text(message))
    console().print(table)


def _warning_lines(records: Iterable[warnings.WarningMessage]) -> Iterator[str]:
    """Each warning once, on one line; those about future versions of a library are left out."""
    future = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
    current = (w for w in records if not issubclass(w.category, future))
    yield from dict.fromkeys(f"warning: {w.category.__name__}: {' '.join(str(w.message).split())}" for w in current)


def _report(ladder: Callable[[], LadderReport], results: Sequence[Outcome]) -> str:
    """The report of the ladders. If a reward raises on one, the check of that ladder shows the error."""
    from grpokit_check.check import attempt
    from grpokit_check.reward.calls import UNSCORED

    if any(outcome.message == UNSCORED for outcome in results):
        return f"ladder: not measured, since {UNSCORED}"
    report = attempt(ladder)
    if isinstance(report, BaseException):
        return f"ladder: not measured, since the reward raised {type(report).__name__}"
    return f"ladder\n{report}"
