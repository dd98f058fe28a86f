"""What `grpokit plugins NAME` says of one component: facts, parameters, and an example to paste."""

from __future__ import annotations

import inspect
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from grpokit import registry
from grpokit.cli.catalogue import GROUPS, group_of, needs
from grpokit.config import presets
from grpokit.registry import shipped
from grpokit.registry.specs import EvaluationSpec, PresetSpec, RewardSpec, Spec

_MEANING: Any = {"width": 100, "initial_indent": " " * 6, "subsequent_indent": " " * 6}
_LINES = ("problem", "install", "scores", "grade", "place", "needs", "takes")  # facts of one line each
_EXAMPLES = {  # of those that are no command
    "reward": "rewards:\n  - {SETTINGS, weight: 1.0}",
    "statistic": "rewards:\n  - {SETTINGS, weight: 0}  # a monitor",
    "policy": "policy: {SETTINGS}",
    "dataset": "data: {SETTINGS}",
    "world": "policy:\n  world: {SETTINGS}",
    "placement": "rewards:\n  - {use: contains, placement: {NAME: {}}}",
    "advantage": "trainer:\n  advantage: {SETTINGS}",
    "objective": "trainer:\n  objective: {SETTINGS}",
    "modifier": "trainer:\n  modifiers:\n    - {SETTINGS}",
}


def facts(kind: str, name: str) -> dict[str, Any]:
    """What a component's spec and its factory say.

    Raises:
        PluginError: the name is unknown or ambiguous.
    """
    from grpokit.errors import GrpokitError

    plugin, spec = registry.find(kind, name)
    about: dict[str, Any] = {
        "kind": kind,
        "name": spec.name,
        "package": plugin.package,
        "version": plugin.version,
        "state": "ok",
        "summary": spec.summary,
        "parameters": [],
        "problem": "",
        "needs": needs(spec),
        "example": spec.example.strip(),
    }
    try:
        about |= _of_file(spec, name) if isinstance(spec, PresetSpec | EvaluationSpec) else _of_factory(spec, name)
        if kind == "preset":
            presets.read_config(name)
    except GrpokitError as error:  # a dependency is missing
        about["problem"] = f"{error} {spec.install if kind == 'preset' else ''}".strip()
    if isinstance(spec, RewardSpec):
        about |= _of_reward(spec, name, plugin.package, about["parameters"])
        if spec.placement:  # what it needs is there, and may be missing here
            about["problem"] = ""
    return about


def _of_file(spec: PresetSpec | EvaluationSpec, name: str) -> dict[str, Any]:
    facts = {"takes": getattr(spec, "takes", ""), "example": example(spec, name, {})}
    return facts | {"config": presets.preset_text(spec)}


def _of_factory(spec: Spec, name: str) -> dict[str, Any]:
    from grpokit.settings import meanings, type_text

    declared, _ = registry.declared_parameters(spec.kind, name)
    described = meanings(registry.resolve(spec.factory))
    parameters = []
    for key, parameter in declared.items():
        needed = parameter.default is parameter.empty
        fact = {
            "name": key,
            "type": type_text(parameter.annotation),
            "needed": needed,
            "default": None if needed else parameter.default,
            "meaning": described.get(key, ""),
        }
        parameters.append(fact)
    return {"parameters": parameters, "example": example(spec, name, declared)}


def _of_reward(spec: RewardSpec, name: str, package: str, parameters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    settings = "".join(f" {each['name']}=..." for each in parameters if each["needed"])
    measured = grade(spec, package) or f"not measured; to measure it: grpokit check {name}{settings}"
    place = json.dumps(dict(spec.placement)) if spec.placement else ""
    return {"scores": scores(spec), "grade": measured, "place": place}


def facts_elsewhere(kind: str, name: str) -> dict[str, Any]:
    """What is known of a component of grpokit's own that is not installed."""
    entry = shipped.entry(kind, name)
    about = {"kind": kind, "name": name, "package": entry["package"], "version": "", "state": "not installed"}
    known = {key: entry.get(key, "") for key in ("summary", "needs", "takes", "grade")}
    return about | known | {"parameters": [], "problem": "", "install": shipped.install(kind, name)}


def lines(about: Mapping[str, Any]) -> list[str]:
    """The same for people."""
    text = [f"{about['kind']} {about['name']}: {about['summary']}"]
    origin = f"{about['package']} {about['version']}"
    text.append(f"  of {origin}" if about["version"] else f"  of {about['package']}, which is not installed")
    text += [f"  {title:<7}  {about[title]}" for title in _LINES if about.get(title)]
    for parameter in about["parameters"]:
        default = "needed" if parameter["needed"] else json.dumps(parameter["default"], default=repr)
        text.append(f"  {parameter['name']}: {parameter['type']} = {default}")
        text += textwrap.wrap(parameter["meaning"], **_MEANING)
    text += [f"\n{about[part]}" for part in ("example", "config") if about.get(part)]
    return text


def scores(spec: RewardSpec) -> str:
    """What a reward scores, and its lowest and highest score."""
    low, high = (bound if bound is not None and math.isfinite(bound) else None for bound in spec.range)
    if low is not None and high is not None:
        bounds = f"{low:g} to {high:g}"
    elif low is not None:
        bounds = f"at least {low:g}"
    elif high is not None:
        bounds = f"at most {high:g}"
    else:
        bounds = "any number"
    group = "" if spec.per_sample else "; it compares the samples of a group"
    return f"{', '.join(sorted(spec.accepts))}: {bounds}{group}"


def grade(spec: RewardSpec, package: str) -> str:
    """How easily a reward is fooled, as its ladders said; empty if that was not measured."""
    if spec.statistic:
        return f"none: it describes and does not judge (low: {spec.statistic[0]}; high: {spec.statistic[1]})"
    entry = shipped.entry("reward", spec.name)
    return entry.get("grade", "") if entry.get("package") == package else ""


def example(spec: Spec, name: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """How a component is used: a part of a config, or a command.

    Args:
        spec: of the component.
        name: how a config names it.
        parameters: those that a config may give to it.
    """
    if spec.example:
        return spec.example.strip()
    values = {key: _value(p) for key, p in parameters.items() if p.default is p.empty}
    keys = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    group = group_of(spec)
    _, use = GROUPS.get(group, ("", "{SETTINGS}"))
    text = _EXAMPLES.get(group, use)
    return text.replace("NAME", name).replace("SETTINGS", ", ".join([f"use: {name}", *keys]))


def _value(parameter: inspect.Parameter) -> Any:
    """Something of a needed parameter's type, to be replaced."""
    hint = parameter.annotation
    for each in (hint, *get_args(hint)):
        if get_origin(each) is Literal:
            return get_args(each)[0]
        if each in (bool, int, float):
            return each(1)
        if get_origin(each) in (list, Sequence):
            return [parameter.name.upper()]
    return parameter.name.upper()
