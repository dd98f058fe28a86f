"""All that is known of components: those that are installed, and those of grpokit's own that pip can add.

`grpokit plugins` and the gallery's page show them in the same groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from grpokit import registry
from grpokit.registry import shipped
from grpokit.registry.entry_points import COMPONENT_KINDS
from grpokit.registry.specs import Spec

GROUPS = {  # in the order in which people look for them: the title, and where the name goes
    "reward": ("Rewards", "rewards: [{use: NAME}]"),
    "statistic": ("Statistics, which describe and do not judge", "rewards: [{use: NAME, weight: 0}]"),
    "policy": ("Policies", "policy: {use: NAME}"),
    "preset": ("Presets", "grpokit train NAME"),
    "dataset": ("Datasets", "data: {use: NAME}"),
    "evaluation": ("Evaluations", "grpokit evaluate RUN --with NAME"),
    "world": ("Worlds", "policy: {world: {use: NAME}}"),
    "placement": ("Placements of rewards", "placement: {NAME: ...}"),
    "advantage": ("Advantages", "trainer: {advantage: NAME}"),
    "objective": ("Objectives", "trainer: {objective: NAME}"),
    "modifier": ("Modifiers", "trainer: {modifiers: [{use: NAME}]}"),
    "command": ("Commands", "grpokit NAME"),
    "plugin": ("Other plugins", ""),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A component, or a plugin that brings none or is broken.

    Attributes:
        kind: of the component; "plugin" for a plugin.
        name: how configs call it.
        package: the distribution that brings it.
        version: of the distribution; empty if it is not installed.
        state: "ok", "ambiguous", "hidden" behind a name of the core, "refused", "broken", "not installed", or
            "announces nothing" of a package that has the keyword of plugins.
        summary: one line; of a preset with what it needs and how long it takes.
        install: the command that brings it if it is not installed.
        group: of `GROUPS`.
        words: what else tells what it is for.
    """

    kind: str
    name: str
    package: str
    version: str = ""
    state: str = "ok"
    summary: str = ""
    install: str = ""
    group: str
    words: str = ""


def kinds() -> list[str]:
    """All kinds of components, in the order of `GROUPS`."""
    return sorted(COMPONENT_KINDS, key=rank)


def rows(commands: Collection[str]) -> list[Row]:
    """A row for each component and each other plugin, group by group, those that are installed first.

    Args:
        commands: the command line's own, which no plugin announces.
    """
    return sorted([*_installed(commands), *_not_installed()], key=place)


def place(row: Row) -> tuple[int, bool, str]:
    """Sorts rows: group by group, those that are installed first."""
    return rank(row.group), row.state == "not installed", row.install


def rank(group: str) -> int:
    """Where a group stands in the list; an unknown one comes last."""
    return [*GROUPS].index(group) if group in GROUPS else len(GROUPS)


def group_of(spec: Spec) -> str:
    """The group of an installed component."""
    return "statistic" if getattr(spec, "statistic", None) else spec.kind


def _installed(commands: Collection[str]) -> Iterator[Row]:
    for plugin in registry.plugins():
        origin = {"package": plugin.package, "version": plugin.version}
        for spec in plugin.specs:
            outputs = getattr(spec, "accepts", {getattr(spec, "makes", "")})
            yield Row(
                kind=spec.kind,
                name=spec.name,
                **origin,
                state=_state(plugin, spec, commands),
                summary=_with_cost(spec.summary, getattr(spec, "needs", ""), getattr(spec, "takes", "")),
                group=group_of(spec),
                words=" ".join(sorted(outputs)),
            )
        for spec in plugin.refused:
            named = {"kind": spec.kind, "name": spec.name, "group": spec.kind}
            yield Row(**named, **origin, state="refused", summary="see below")
        named = {"kind": "plugin", "name": plugin.name, "group": "plugin"}
        if plugin.error:
            yield Row(**named, **origin, state="broken", summary="see below")
        elif not (plugin.specs or plugin.refused):
            yield Row(**named, **origin, summary="watches runs")


def _state(plugin: registry.Plugin, spec: Spec, commands: Collection[str]) -> str:
    if spec.kind == "command" and spec.name in commands:
        return "hidden"
    meant = registry.named(spec.kind, spec.name)
    if len(meant) > 1:
        return "ambiguous"
    return "ok" if (plugin, spec) in meant else "hidden"


def _not_installed() -> Iterator[Row]:
    packages = {plugin.package for plugin in registry.plugins()}
    for kind, name, entry in shipped.entries():
        if entry["package"] in packages or "extra" not in entry:
            continue
        cost = (entry.get("needs", ""), entry.get("takes", "")) if kind in ("preset", "evaluation") else ()
        yield Row(
            kind=kind,
            name=name,
            package=entry["package"],
            state="not installed",
            summary=_with_cost(entry["summary"], *cost),
            install=shipped.install(kind, name),
            group="statistic" if "statistic" in entry else kind,
            words=entry["keywords"],
        )


def _with_cost(summary: str, *cost: str) -> str:
    words = ", ".join(filter(None, cost))
    return f"{summary} ({words})" if words else summary


def needs(spec: Spec) -> str:
    """What a component needs with its defaults besides packages, in a few words; empty for nothing."""
    words = getattr(spec, "needs", "") or ", ".join(asset.name for asset in spec.assets if not asset.module)
    memory = getattr(spec, "gpu_memory", 0.0)
    on_a_gpu = f"on a GPU {memory / 1e9:.1f} GB of its memory" if memory else ""
    return "; ".join(filter(None, (words, on_a_gpu)))
