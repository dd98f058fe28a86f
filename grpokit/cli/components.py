"""The commands about what is installed and what authors add to it: plugins, check, new, schema, doctor."""

from __future__ import annotations

import dataclasses
import json
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpokit.cli.app import FAILED, app, console, grid, own_commands
from grpokit.cli.options import Json, Prompts, PromptsFile, read_prompts
from grpokit.config.overrides import parse_parameters
from grpokit.errors import UsageError, address, counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.status import Status

    from grpokit.testing import Check, LadderReport, Outcome

_KINDS = (
    "policy",
    "reward",
    "preset",
    "evaluation",
    "advantage",
    "objective",
    "modifier",
    "placement",
    "world",
    "command",
)
_MEANING: Any = {"width": 100, "initial_indent": " " * 6, "subsequent_indent": " " * 6}


@app.command()
def plugins(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Show this component and its parameters.")] = "",
    as_json: Json = False,
) -> None:
    """List the installed policies, rewards and presets.

    It lists evaluations, advantages and objectives, too, placements of rewards, and worlds. Each is shown with the
    package that brings it, and is marked if its name clashes or its plugin is broken. Presets say what they need and
    how long they take. With a name it shows the parameters with their defaults and meanings, or the text of a
    preset or an evaluation.
    """
    if name:
        _show_components(name, as_json)
    elif as_json:
        print(json.dumps(_plugin_rows()))
    else:
        _list_plugins()


def _show_components(name: str, as_json: bool) -> None:
    """All components with this name, of any kind."""
    from grpokit import registry

    kinds = [kind for kind in _KINDS if registry.named(kind, name)]
    if not kinds:
        raise registry.unknown(name, *_KINDS)
    facts = [_facts(kind, name) for kind in kinds]
    if as_json:
        print(json.dumps(facts, default=repr))
        return
    for fact in facts:
        lines = [f"{fact['kind']} {fact['name']}: {fact['summary']}", f"  of {fact['package']} {fact['version']}"]
        for parameter in fact["parameters"]:
            default = "needed" if parameter["needed"] else json.dumps(parameter["default"], default=repr)
            lines.append(f"  {parameter['name']}: {parameter['type']} = {default}")
            lines += textwrap.wrap(parameter["meaning"], **_MEANING)
        lines += [f"  {title:<7}  {fact[title]}" for title in ("problem", "needs", "takes") if fact.get(title)]
        print(*lines, *([f"\n{fact['config']}"] if fact.get("config") else []), sep="\n")


def _facts(kind: str, name: str) -> dict[str, Any]:
    """What a component's spec and its factory say."""
    from grpokit import registry
    from grpokit.config import presets
    from grpokit.errors import GrpokitError
    from grpokit.registry.specs import EvaluationSpec, PresetSpec
    from grpokit.settings import meanings, type_text

    plugin, spec = registry.find(kind, name)
    facts: dict[str, Any] = {"kind": kind, "name": spec.name, "package": plugin.package, "version": plugin.version}
    facts |= {"summary": spec.summary, "parameters": [], "problem": ""}
    try:
        if isinstance(spec, PresetSpec | EvaluationSpec):
            facts |= {"needs": spec.needs, "takes": getattr(spec, "takes", ""), "config": presets.text_of(spec)}
            if kind == "preset":
                presets.read_config(name)
            return facts
        parameters, _ = registry.declared(kind, name)
        described = meanings(registry.resolve(spec.factory))
    except GrpokitError as error:  # a dependency is missing
        facts["problem"] = f"{error} {spec.install if kind == 'preset' else ''}".strip()
        return facts
    for key, parameter in parameters.items():
        needed = parameter.default is parameter.empty
        default, words = None if needed else parameter.default, type_text(parameter.annotation)
        fact = {"name": key, "type": words, "needed": needed, "default": default, "meaning": described.get(key, "")}
        facts["parameters"].append(fact)
    return facts


def _list_plugins() -> None:
    from grpokit import registry

    rows = []
    for row in _plugin_rows():
        mark = "" if row["state"] == "ok" else f"{row['state']}: "
        rows.append([row["kind"], row["name"], f"{row['package']} {row['version']}", f"{mark}{row['summary']}"])
    titles = ("kind", "name", "package", "what it does")
    console().print(grid(titles, rows, words=titles))
    for what, advice in registry.clashes(own_commands()):
        print(f"{what[0].upper()}{what[1:]}. {advice}")
    for plugin in registry.plugins():
        for problem in plugin.problems:
            print(f"{plugin.name}: {problem}")


def _plugin_rows() -> list[dict[str, str]]:
    """A row for each component, and for each plugin that brings none or is broken."""
    from grpokit import registry

    rows = []
    for plugin in registry.plugins():
        origin = {"package": plugin.package, "version": plugin.version}
        for spec in plugin.specs:
            meant = registry.named(spec.kind, spec.name)
            if spec.kind == "command" and spec.name in own_commands():
                meant = []
            if len(meant) > 1:
                state = "ambiguous"
            else:
                state = "ok" if (plugin, spec) in meant else "hidden"
            cost = ", ".join(filter(None, (getattr(spec, "needs", ""), getattr(spec, "takes", ""))))
            summary = f"{spec.summary} ({cost})" if cost else spec.summary
            rows.append({"kind": spec.kind, "name": spec.name, **origin, "state": state, "summary": summary})
        for spec in plugin.refused:
            rows.append({"kind": spec.kind, "name": spec.name, **origin, "state": "refused", "summary": "see below"})
        if plugin.error or not (plugin.specs or plugin.refused):
            state, summary = ("broken", "see below") if plugin.error else ("ok", "watches runs")
            rows.append({"kind": "plugin", "name": plugin.name, **origin, "state": state, "summary": summary})
    return sorted(rows, key=lambda row: (*_KINDS, "plugin").index(row["kind"]))


@app.command()
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

    A policy draws samples for the prompts you give (two or more), or for those of a preset that uses it. For a
    reward, the command also measures how easily the reward is fooled. The other kinds need nothing.
    """
    from grpokit.testing import component

    ladder = None
    own_prompts = read_prompts(prompt, prompts)
    params = parse_parameters(parameters or [])
    with (
        warnings.catch_warnings(record=True) as records,  # they are printed below the table
        console(stderr=True).status(f"building {name}", spinner="line") as status,
        ExitStack() as stack,
    ):
        kind = component.kind_of(name, kind)
        if own_prompts and kind != "policy":
            raise UsageError(
                f"'{name}' is not a policy, so it reads no prompts. Leave out --prompt and --prompts, or add "
                "--kind policy if it makes one."
            )
        if kind == "policy":
            first = own_prompts if prompts is None or own_prompts is None else own_prompts[:4]
            checks = component.of_policy(name, params, first)
        elif kind != "reward":
            checks = component.of_component(kind, name, params)
        else:
            checks, ladder = stack.enter_context(component.of_reward(name, params))
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
        raise typer.Exit(FAILED)


def _versions(kind: str, name: str) -> dict[str, str]:
    """The versions of grpokit, and of the package that brings a component; empty where none does."""
    import grpokit
    from grpokit import registry

    plugin = registry.find(kind, name)[0] if registry.named(kind, name) else None
    own = {"package": plugin.package, "version": plugin.version} if plugin else {"package": "", "version": ""}
    return {"grpokit": grpokit.__version__, **own}


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
    summary += [counted(counts["expected failure"], "expected failure")] if counts["expected failure"] else []
    summary += [f"{counts['not checked']} not checked"] if counts["not checked"] else []
    return ", ".join(summary)


def _run(checks: Iterable[Check], status: Status) -> Iterator[Outcome]:
    """Run the checks one after the other; a terminal shows which one runs."""
    from grpokit.testing import outcomes

    every = list(checks)
    for number, check in enumerate(every, 1):
        status.update(f"check {number} of {len(every)}: {check.name}")
        yield from outcomes([check])


def _print_results(results: Sequence[Outcome]) -> None:
    """A row for each check; those that were not made for the same reason share the row of the first."""
    from rich.table import Table
    from rich.text import Text

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
    from grpokit.testing.check import attempt
    from grpokit.testing.reward.calls import UNSCORED

    if any(outcome.message == UNSCORED for outcome in results):
        return f"ladder: not measured, since {UNSCORED}"
    report = attempt(ladder)
    if isinstance(report, BaseException):
        return f"ladder: not measured, since the reward raised {type(report).__name__}"
    return f"ladder\n{report}"


@app.command()
def new(
    what: Annotated[
        str,
        typer.Argument(
            metavar="reward|policy|advantage|objective|modifier|preset|evaluation|world", help="What to make."
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="What configs will call it, such as sharp-edges.")],
    folder: Annotated[Path, typer.Option("--folder", help="Where to make the folder grpokit-NAME.")] = Path(),
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", help="A reward of image (the default) or text; a policy of text (the default), image or flow."
        ),
    ] = None,
) -> None:
    """Write the package of a new component.

    The package works and has tests. Edit it to make it your own.
    """
    from grpokit.scaffold import write

    package = write.new(what, name, folder=folder, kind=kind)
    print(f"{package.folder} holds a working {what} in {counted(len(package.files), 'file')}. Next:\n")
    for line in package.next_steps:
        print(f"  {line}")


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
            print(end=textwrap.indent(f"{finding.advice}\n" if finding.advice else "", " " * 21))
    problems, notes = (sum(finding.state == state for finding in findings) for state in ("problem", "note"))
    if as_json:
        print(json.dumps({"healthy": not problems, "findings": [*map(dataclasses.asdict, findings)]}, indent=2))
    else:
        words = counted(problems, "problem") if problems else "healthy"
        print(f"{words}, {counted(notes, 'note')}; see {address('doctor')}")
    if problems:
        raise typer.Exit(FAILED)
