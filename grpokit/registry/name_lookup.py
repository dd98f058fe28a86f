"""Which spec of which plugin a name in a config means, or why it means none or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpokit.errors import PluginError, nearest
from grpokit.registry import entry_points, shipped
from grpokit.registry.entry_points import Plugin
from grpokit.registry.specs import Spec

Owned = tuple[Plugin, Spec]
"""A spec with the plugin that brings it."""


@dataclass(frozen=True, kw_only=True)
class Clash:
    """One name that several plugins give to components of one kind.

    Attributes:
        kind: of the components.
        name: what the plugins call them.
        choices: name that means one component alone -> the distribution that brings it.
    """

    kind: str
    name: str
    choices: dict[str, str]


def installed(kind: str) -> list[Owned]:
    """All specs of a kind ("reward", "policy", "preset", ...) with the plugin that brings each."""
    return [(plugin, spec) for plugin in entry_points.plugins() for spec in plugin.specs if spec.kind == kind]


def find(kind: str, name: str) -> Owned:
    """The spec called `name`, or `plugin:name` where several plugins use the short name.

    Where plugins of one name have it, `distribution:name` says which.

    Raises:
        PluginError: no spec has the name (the message gives the nearest one and the broken plugins), or several have.
    """
    matches = named(kind, name)
    if len(matches) == 1:
        return matches[0]
    if matches:
        choices = " or ".join(f"'{_full_name(owned, matches)}'" for owned in matches)
        raise PluginError(f"The {kind} name '{name}' is ambiguous: write {choices}.")
    names = sorted({spec.name for _, spec in installed(kind)})
    remedy = shipped.remedy(kind, name)
    guess = "" if remedy else nearest(name, names)
    raise PluginError(
        f"There is no {kind} called '{name}'{guess}. Known: {', '.join(names) or 'none'}.{remedy}{broken_plugins()}",
        page="doctor#plugins",
    )


def broken_plugins() -> str:
    """The broken plugins, for a message about an unknown name; empty without any."""
    broken = [f"\n  {p.name} ({p.package}): {p.error}" for p in entry_points.plugins() if p.error]
    return f" These plugins are broken and may have brought it:{''.join(broken)}" if broken else ""


def is_path(name: str) -> bool:
    """Whether a name is "package.module:function", which no plugin announces, and not "plugin:name"."""
    prefix = name.rpartition(":")[0]
    return bool(prefix) and not any(
        prefix == plugin.name or any(name == f"{plugin.package}:{spec.name}" for spec in plugin.specs)
        for plugin in entry_points.plugins()
    )


def spec_of(kind: str, name: str) -> Spec | None:
    """The spec called `name`, or None for "package.module:function".

    Raises:
        PluginError: no such name, or several.
    """
    return None if is_path(name) else find(kind, name)[1]


def meant_by_preset(kind: str, name: str, package: str) -> str:
    """What a preset of the distribution `package` calls `name`, written so that no other plugin can change it.

    Of several plugins, its own distribution comes first, then the one of grpokit's own that brings the name. The name
    stays as it is where only one plugin has it, and where neither of these does.
    """
    matches = named(kind, name)
    for preferred in (package, shipped.owner(kind, name)):
        own = [owned for owned in matches if owned[0].package == preferred]
        if len(own) == 1 < len(matches):
            return _full_name(own[0], matches)
    return name


def clashes() -> Iterator[Clash]:
    """The names that are ambiguous in this environment."""
    for kind, name in dict.fromkeys((spec.kind, spec.name) for p in entry_points.plugins() for spec in p.specs):
        matches = named(kind, name)
        if len(matches) > 1:
            choices = {_full_name(owned, matches): owned[0].package for owned in matches}
            yield Clash(kind=kind, name=name, choices=choices)


def named(kind: str, name: str) -> list[Owned]:
    """The specs of a kind that `name` may mean: none, one, or several where it is ambiguous."""
    owned = installed(kind)
    return [(p, s) for p, s in owned if name in (s.name, f"{p.name}:{s.name}")] or [
        (p, s) for p, s in owned if name == f"{p.package}:{s.name}"
    ]


def _full_name(owned: Owned, matches: Sequence[Owned]) -> str:
    """The name that means this one of the matches alone."""
    plugin, spec = owned
    alone = sum(plugin.name == other.name for other, _ in matches) == 1
    return f"{plugin.name if alone else plugin.package}:{spec.name}"
