"""The names of components in a config as a run folder keeps them, so that later installations do not change them.

A name that is not the core's gets its distribution in front, as in "grpokit-twin:twin". A resumed run keeps the names
that it was started with, even if another plugin has brought the same name since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from grpokit import registry
from grpokit.config.schema import to_dict
from grpokit.config.yaml_source import KeyPath
from grpokit.registry.specs import Spec

_KINDS = {
    "policy": "policy",
    "rewards": "reward",
    "advantage": "advantage",
    "objective": "objective",
    "modifiers": "modifier",
    "world": "world",
    "placement": "placement",
    "data": "dataset",
}
"""The key above a `use` -> the kind of component."""

_WITHOUT_USE = ("advantage", "objective", "modifiers", "world")
"""Keys whose value may be the name alone."""

_Model = TypeVar("_Model", bound=BaseModel)
Names = Mapping[KeyPath, tuple[str, str]]
"""Place -> the kind and the name of a component."""


def component_names(config: BaseModel) -> Names:
    """The components that a config names, except those that a component's own parameters name under other keys."""
    return {place: (kind, name) for place, kind, name in _walk(to_dict(config), "", ())}


def _walk(value: Any, key: str, place: KeyPath) -> Iterator[tuple[KeyPath, str, str]]:
    kind = _KINDS.get(key, "")
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, key, (*place, index))
    elif isinstance(value, str) and key in _WITHOUT_USE:
        yield place, kind, value
    elif isinstance(value, dict) and kind == "placement":
        for name in value:
            yield place, kind, name
    elif isinstance(value, dict):
        if kind and isinstance(value.get("use"), str):
            yield (*place, "use"), kind, value["use"]
        for name, item in value.items():
            yield from _walk(item, name, (*place, name))


def with_lasting_names(config: _Model, before: Names | None = None) -> tuple[_Model, list[str]]:
    """A copy of a config in which each name means its component whatever else is installed.

    Args:
        config: of a run or an evaluation.
        before: the names that the run was started with, if it goes on. A name that stands there with its distribution
            in front means the same component now.

    Returns:
        The copy, and a line for each name that would mean another component in a new run.
    """
    config, lines = config.model_copy(deep=True), []
    for place, (kind, name) in component_names(config).items():
        now = registry.lasting(kind, name)
        _, then = (before or {}).get(place, ("", ""))
        if then.rpartition(":")[2] == name and then != now:
            where = ".".join(map(str, place))
            lines += [f"{where}: '{name}' means '{then}', as when the run began"] if then != name else []
            now = then
        if now != name:
            _put(config, place, now)
    return config, lines


def with_own_names(config: _Model, spec: Spec) -> _Model:
    """A copy of a preset or an evaluation whose author meant the components of the own distribution.

    Args:
        config: what the preset or the evaluation says.
        spec: what its plugin announces. A name that its distribution and others have gets that distribution in front.
    """
    config = config.model_copy(deep=True)
    packages = [plugin.package for plugin, each in registry.installed(spec.kind) if each is spec]
    for place, (kind, name) in component_names(config).items():
        is_ambiguous = len(registry.named(kind, name)) > 1
        own = [f"{package}:{name}" for package in packages if registry.named(kind, f"{package}:{name}")]
        if is_ambiguous and own:
            _put(config, place, own[0])
    return config


def _put(config: BaseModel, place: KeyPath, name: str) -> None:
    """Write a name to its place in a config."""
    around: Any = config
    for key in place[:-1]:
        around = (dict(around) if isinstance(around, BaseModel) else around)[key]
    value: Any = name
    if place[-1] == "placement":
        params = next(iter(around.placement.values()))
        value = {name: params}
    if isinstance(around, BaseModel):
        setattr(around, str(place[-1]), value)
    else:
        around[place[-1]] = value
