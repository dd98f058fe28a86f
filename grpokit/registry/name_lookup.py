"""Which spec of which plugin a name in a config means, or why it means none or several."""

from __future__ import annotations

from grpokit.errors import PluginError, nearest
from grpokit.registry import entry_points, shipped
from grpokit.registry.entry_points import Plugin
from grpokit.registry.specs import Spec

Owned = tuple[Plugin, Spec]
"""A spec with the plugin that brings it."""


def installed(kind: str) -> list[Owned]:
    """All specs of a kind ("reward", "policy", "preset", ...) with the plugin that brings each."""
    return [(plugin, spec) for plugin in entry_points.plugins() for spec in plugin.specs if spec.kind == kind]


def find(kind: str, name: str) -> Owned:
    """The spec called `name`, or `plugin:name` where several plugins use the short name.

    Raises:
        PluginError: no spec has the name, or several have.
    """
    matches = named(kind, name)
    if len(matches) == 1:
        return matches[0]
    if matches:
        choices = " or ".join(f"'{_full_name(owned)}'" for owned in matches)
        raise PluginError(f"The {kind} name '{name}' is ambiguous: write {choices}.")
    raise unknown(name, kind)


def unknown(name: str, *kinds: str) -> PluginError:
    """That no spec of some kinds has the name; the message gives the nearest one and the broken plugins."""
    names = sorted({spec.name for kind in kinds for _, spec in installed(kind)})
    remedy = next(filter(None, (shipped.remedy(kind, name) for kind in kinds)), "")
    guess = "" if remedy else nearest(name, names)
    broken = [f"\n  {p.name} ({p.package}): {line}" for p in entry_points.plugins() for line in p.problems]
    what = kinds[0] if len(kinds) == 1 else "component"
    others = f"Known: {', '.join(names) or 'none'}." if len(kinds) == 1 else "`grpokit plugins` lists all."
    return PluginError(
        f"There is no {what} called '{name}'{guess}. {others}{remedy}"
        f"{' These plugins are broken and may have brought it:' if broken else ''}{''.join(broken)}",
        page="doctor#plugins",
    )


def is_path(name: str) -> bool:
    """Whether a name is "package.module:function", which no plugin announces, and not "plugin:name"."""
    prefix = name.rpartition(":")[0]
    return bool(prefix) and all(prefix != plugin.name for plugin in entry_points.plugins())


def spec_of(kind: str, name: str) -> Spec | None:
    """The spec called `name`, or None for "package.module:function".

    Raises:
        PluginError: no such name, or several.
    """
    return None if is_path(name) else find(kind, name)[1]


def clashes() -> dict[tuple[str, str], dict[str, str]]:
    """The names that are ambiguous here: (kind, name) -> name that means one component -> its distribution."""
    every = dict.fromkeys((spec.kind, spec.name) for plugin in entry_points.plugins() for spec in plugin.specs)
    choices = {key: {_full_name(owned): owned[0].package for owned in named(*key)} for key in every}
    return {key: names for key, names in choices.items() if len(names) > 1}


def named(kind: str, name: str) -> list[Owned]:
    """The specs of a kind that `name` may mean: none, one, or several where it is ambiguous."""
    return [owned for owned in installed(kind) if name in (owned[1].name, _full_name(owned))]


def _full_name(owned: Owned) -> str:
    plugin, spec = owned
    return f"{plugin.name}:{spec.name}"
