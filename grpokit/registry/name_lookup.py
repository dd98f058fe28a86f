"""Which spec of which plugin a name in a config means, or why it means none or several.

A name may be qualified by the distribution that brings the component, as in "grpokit-twin:twin". Without that it means
the core's component if the core has one of this name, else the only one that there is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from grpokit.errors import PluginError, nearest
from grpokit.registry import entry_points, shipped
from grpokit.registry.compatibility import refusal
from grpokit.registry.entry_points import Plugin
from grpokit.registry.specs import Spec

CORE = "grpokit"  # the distribution whose names others cannot take
Owned = tuple[Plugin, Spec]
"""A spec with the plugin that brings it."""


def installed(kind: str) -> list[Owned]:
    """All specs of a kind ("reward", "policy", "preset", ...) with the plugin that brings each."""
    return [owned for owned in _all_specs() if owned[1].kind == kind]


def _all_specs() -> list[Owned]:
    return [(plugin, spec) for plugin in entry_points.plugins() for spec in plugin.specs]


def find(kind: str, name: str) -> Owned:
    """The spec that `name` means, with or without the distribution in front.

    Raises:
        PluginError: no spec has the name, or several have.
    """
    matches = named(kind, name)
    if len(matches) == 1:
        return matches[0]
    if matches and not _twice(matches):
        raise PluginError(f"The {kind} name '{name}' is ambiguous: write {_choices(matches)}.")
    if matches:
        raise PluginError(f"The {kind} name '{name}' is ambiguous: {_twice(matches)}")
    raise unknown(name, kind)


def unknown(name: str, *kinds: str) -> PluginError:
    """That no spec of some kinds has the name; the message gives the nearest one and the broken plugins."""
    if refused := refusals(name, *kinds):
        return PluginError("\n".join(refused), page="doctor#plugins")
    package, _, short = name.rpartition(":")
    matching = [owned for owned in _all_specs() if owned[1].kind in kinds]
    names = sorted({spec.name for _, spec in matching})
    brought = [kind for kind in kinds if package in ("", shipped.owner(kind, short))]
    remedy = next(filter(None, (shipped.remedy(kind, short) for kind in brought)), "")
    guess = "" if remedy else nearest(name, [*names, *map(full_name, matching)])
    packages = {plugin.package for plugin in entry_points.plugins()}
    is_distribution = package and "." not in package  # otherwise a module
    if is_distribution and package not in packages and not (remedy or guess):
        remedy = f" {package} is not installed. Run: pip install {package}"
    broken = [f"\n  {p.name} ({p.package}): {line}" for p in entry_points.plugins() for line in p.problems]
    what = kinds[0] if len(kinds) == 1 else "component"
    others = (
        f"Known: {', '.join(names) or 'none'}."
        if len(kinds) == 1
        else "`grpokit plugins` lists all; `--search` looks for words."
    )
    return PluginError(
        f"There is no {what} called '{name}'{guess}. {others}{remedy}"
        f"{' These plugins are broken and may have brought it:' if broken else ''}{''.join(broken)}",
        page="doctor#plugins",
    )


def refusals(name: str, *kinds: str) -> list[str]:
    """That this grpokit does not read the specs of some kinds that have the name, and what to install."""
    lines = []
    for plugin in entry_points.plugins():
        for spec in plugin.refused:
            names = (spec.name, full_name((plugin, spec)))
            lines += [f"The {refusal(spec, plugin.package)}"] if spec.kind in kinds and name in names else []
    return lines


def is_path(name: str) -> bool:
    """Whether a name is "package.module:function", which no plugin announces, and not "distribution:name"."""
    module = name.rpartition(":")[0]
    refused = [(plugin, spec) for plugin in entry_points.plugins() for spec in plugin.refused]
    announced = map(full_name, [*_all_specs(), *refused])
    return all(map(str.isidentifier, module.split("."))) and name not in announced


def spec_of(kind: str, name: str) -> Spec | None:
    """The spec called `name`, or None for "package.module:function".

    Raises:
        PluginError: no such name, or several.
    """
    return None if is_path(name) else find(kind, name)[1]


def clashes(commands: Collection[str]) -> Iterator[tuple[str, str]]:
    """Names that several components of a kind have: what each means, and what to write for the others.

    Args:
        commands: the command line's own, which no plugin announces.
    """
    for kind, name in dict.fromkeys((spec.kind, spec.name) for _, spec in _all_specs()):
        every = [owned for owned in installed(kind) if owned[1].name == name]
        others = [owned for owned in every if owned[0].package != CORE]
        own = len(others) < len(every) or (kind == "command" and name in commands)
        if others and own:
            yield f"the {kind} name '{name}' means grpokit's own", f"For the other one write {_choices(others)}."
        elif len(others) > 1:
            advice = _twice(others) or f"Write {_choices(others)}."
            yield f"the {kind} name '{name}' is ambiguous", advice


def named(kind: str, name: str) -> list[Owned]:
    """The specs of a kind that `name` may mean: none, one, or several where it is ambiguous."""
    matches = [owned for owned in installed(kind) if name in (owned[1].name, full_name(owned))]
    return [owned for owned in matches if owned[0].package == CORE] or matches


def lasting(kind: str, name: str) -> str:
    """The name that means the same component whatever is installed later: the core's own, or the long one.

    A name that means none or several stays as it is.
    """
    matches = named(kind, name)
    if len(matches) != 1:
        return name
    plugin, spec = matches[0]
    return spec.name if plugin.package == CORE else full_name(matches[0])


def full_name(owned: Owned) -> str:
    """A spec's name with its distribution in front."""
    plugin, spec = owned
    return f"{plugin.package}:{spec.name}"


def spelling(path: str) -> str:
    """A hint at the component whose distribution a path spells as indexes do not; empty where there is none."""
    package, _, short = path.rpartition(":")
    name = f"{entry_points.normal(package)}:{short}"
    return f" (did you mean '{name}'?)" if name in map(full_name, _all_specs()) else ""


def _twice(some: Collection[Owned]) -> str:
    """That one distribution brings several components of one name, which no name tells apart; else empty."""
    packages = [plugin.package for plugin, _ in some]
    package = max(packages, key=packages.count)
    if packages.count(package) == 1:
        return ""
    factories = [f"'{spec.factory}'" for plugin, spec in some if plugin.package == package]
    return (
        f"{package} brings several, {' and '.join(factories)}. Its author has to rename them. Until then a config can "
        "name the function itself."
    )


def _choices(some: Collection[Owned]) -> str:
    return " or ".join(f"'{full_name(owned)}'" for owned in some)
