"""The commands about what is installed: plugins, schema, doctor."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections import Counter
from typing import Annotated, Any

import typer

from grpokit.cli.app import FAILED, app, console, grid, own_commands
from grpokit.cli.options import Json
from grpokit.errors import address, plural

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
    "dataset",
    "command",
)
_MEANING: Any = {"width": 100, "initial_indent": " " * 6, "subsequent_indent": " " * 6}


@app.command()
def plugins(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Show this component and its parameters.")] = "",
    as_json: Json = False,
) -> None:
    """List the installed policies, rewards and presets.

    It lists evaluations, advantages and objectives, too, placements of rewards, worlds, and datasets. Each is shown
    with the package that brings it, and is marked if its name clashes or its plugin is broken. Presets say what they
    need and how long they take. With a name it shows the parameters with their defaults and meanings, or the text of
    a preset or an evaluation.
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
        if fact.get("config"):
            lines.append(f"\n{fact['config']}")
        print(*lines, sep="\n")


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
            facts |= {"needs": spec.needs, "takes": getattr(spec, "takes", ""), "config": presets.preset_text(spec)}
            if kind == "preset":
                presets.read_config(name)
            return facts
        parameters, _ = registry.declared_parameters(kind, name)
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
