"""Where a config comes from: a preset that a plugin brings, a file, or a run folder.

Torch is not needed here, so a mistake in a config is reported at once.
"""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpokit import registry
from grpokit.config.parts import TrainerConfig
from grpokit.config.schema import RunConfig, load, parse
from grpokit.errors import ConfigError, PluginError, typed_line
from grpokit.registry.specs import Spec


def read_config(source: str | Path, overrides: Sequence[str] = ()) -> tuple[RunConfig, str]:
    """Read a preset, a file or a run folder; returns the config and a short name for it.

    A preset's name means that preset, even if the current folder has such a file; `./name`, or a Path, means the file.

    Raises:
        ConfigError: neither a preset nor a file, or the config is wrong.
    """
    path = Path(source)
    if isinstance(source, str) and names_preset(source):
        return _read_preset(source, overrides)
    if os.path.isfile(path / "config.yaml"):  # unlike Path's, it is False for a name that no file can have
        config = load(path / "config.yaml", overrides)
        config.run.dir = str(path)  # wherever it was when it was written
        return config, path.resolve().name
    if path.suffix in (".yaml", ".yml") or os.path.isfile(path):
        return load(path, overrides), path.stem
    if os.path.isdir(path):
        raise ConfigError(
            f"{path} is a folder without a config.yaml; expected a preset, a config file or a run folder."
        )
    return _read_preset(str(source), overrides)


def names_preset(source: str) -> bool:
    """Whether a preset has this name."""
    return any(source == spec.name for _, spec in registry.installed("preset"))


def text_of(spec: Spec) -> str:
    """A preset's YAML from its package.

    Raises:
        PluginError: it cannot be read.
    """
    package, _, inside = spec.factory.partition(":")
    try:
        return importlib.resources.files(package).joinpath(inside).read_text(encoding="utf-8")
    except Exception as error:  # importing the plugin's package may raise anything
        raise PluginError(
            f"The preset '{spec.name}' cannot be read from the file {inside} in package {package}: {typed_line(error)}."
        ) from error


def _read_preset(source: str, overrides: Sequence[str]) -> tuple[RunConfig, str]:
    try:
        plugin, spec = registry.find("preset", source)
    except PluginError as error:
        raise ConfigError(
            f"{error} Nor is there a folder {source} in {Path.cwd()}. A config file ends in .yaml."
        ) from error
    text = text_of(spec)

    def name_components(data: dict[str, Any]) -> None:  # before the overrides, whose names are the user's
        for kind, holder, key in _components(data):
            default = TrainerConfig.model_fields[key].default if key in TrainerConfig.model_fields else None
            name = holder.get(key, default)
            if isinstance(name, str) and registry.meant_by_preset(kind, name, plugin.package) != name:
                holder[key] = registry.meant_by_preset(kind, name, plugin.package)

    return parse(text, f"preset {source}", overrides, prepare=name_components), spec.name


def _components(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Kind, group and key of each name of a component in a config that is not validated yet."""
    data.setdefault("trainer", {})
    components = [("policy", data.get("policy"))]
    for part in (data, *_listed(data.get("phases"))):
        components += [("reward", reward) for reward in _listed(part.get("rewards"))]
        trainer = part.get("trainer")
        if not isinstance(trainer, dict):
            continue
        for kind in ("advantage", "objective"):
            if isinstance(trainer.get(kind), dict):
                components.append((kind, trainer[kind]))
            elif part is data or kind in trainer:
                yield kind, trainer, kind
    yield from ((kind, component, "use") for kind, component in components if isinstance(component, dict))


def _listed(items: Any) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
