"""`grpokit capsules`: the environments of rewards and worlds that are on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from grpokit import UsageError, registry
from grpokit.cli.app import console, grid
from grpokit.cli.options import Json
from grpokit.config import presets
from grpokit.config.schema import RunConfig
from grpokit.errors import nearest, plural
from grpokit_capsule import environments
from grpokit_capsule.environments import Environment, Needs


def capsules(
    config: Annotated[str, typer.Argument(metavar="[CONFIG]", help="A config or preset: build what it needs.")] = "",
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="NAME", help="Remove this environment; `all` removes all.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Build from the packages in uv's cache alone.")] = False,
    as_json: Json = False,
) -> None:
    """List the environments of rewards and worlds, build those of a config, or remove some.

    A run builds what it needs by itself. To build it before, on a machine with a network, name the run's config. The
    versions of an environment that is removed are kept, so it is the same once it is built again.
    """
    if config and remove:
        raise UsageError("Give either a config or --remove, not both.")
    if config:
        _build(config, offline=offline)
    elif remove:
        _remove(remove)
    elif as_json:
        print(json.dumps([_facts(each) for each in environments.environments()]))
    else:
        _list()


def _build(source: str, *, offline: bool) -> None:
    config, _ = presets.read_config(source)
    is_needed = False
    for use, options in _capsules(config):
        requires, python = options.get("requires", ()), options.get("python")
        if environments.ready_made(requires, python) is None:
            is_needed = True
            needs = Needs.of(requires, python)
            built = environments.environment(needs, what=f"'{use}'", offline=offline)
            print(f"{built.name}  {use}")
    if not is_needed:
        raise UsageError(f"Nothing of {source} runs in a capsule that would be built.")


def _capsules(config: RunConfig) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What runs in a capsule, with the capsule's options: rewards, and the policy's world."""
    rewards = [*config.rewards]
    for phase in config.phases:
        rewards += phase.rewards or []
    for reward in rewards:
        kind, options = registry.placement_of(reward.use, reward.placement or {})
        if kind.rpartition(":")[2] == "capsule":
            yield reward.use, options
    world = config.policy.params.get("world")
    if isinstance(world, Mapping):
        use = str(world.get("use"))
        if use.rpartition(":")[2] in ("capsule", "openenv", "verifiers"):
            yield use, world


def _remove(names: list[str]) -> None:
    there = environments.names()
    for name in names:
        if name != "all" and name not in there:
            guess = nearest(name, there)
            raise UsageError(f"There is no capsule called '{name}'{guess}. `grpokit capsules` lists all.")
    chosen = there if "all" in names else [*dict.fromkeys(names)]
    for name in chosen:
        environments.remove(name)
    print(f"removed {plural(len(chosen), 'capsule')}")


def _facts(environment: Environment) -> dict[str, object]:
    return {
        "name": environment.name,
        "python": environment.version,
        "requires": [*environment.requires],
        "bytes": environment.size,
        "folder": str(environment.folder),
    }


def _list() -> None:
    rows = []
    for each in environments.environments():
        rows.append([each.name, f"{each.size / 1e9:.2f} GB", each.version, ", ".join(each.requires) or "nothing"])
    if rows:
        console().print(grid(("name", "size", "Python", "requires"), rows, words=("Python", "requires")))
    print(f"{plural(len(rows), 'capsule')} in {environments.cache()}")
