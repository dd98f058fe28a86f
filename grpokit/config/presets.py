"""Where a config comes from: a preset that a plugin brings, a file, or a run folder.

Torch is not needed here, so a mistake in a config is reported at once.
"""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Sequence
from pathlib import Path

from grpokit import registry
from grpokit.config.component_names import with_own_names
from grpokit.config.schema import RunConfig, load_config, parse
from grpokit.errors import ConfigError, PluginError, error_line
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
        config = load_config(path / "config.yaml", overrides)
        if not any(word.startswith("run.dir=") for word in overrides):
            config.run.dir = str(path)  # wherever it was when it was written
        return config, path.resolve().name
    if path.suffix in (".yaml", ".yml") or os.path.isfile(path):
        return load_config(path, overrides), path.stem
    if os.path.isdir(path):
        raise ConfigError(
            f"{path} is a folder without a config.yaml; expected a preset, a config file or a run folder."
        )
    return _read_preset(str(source), overrides)


def names_preset(source: str) -> bool:
    """Whether a preset has this name."""
    return bool(registry.named("preset", source))


def preset_text(spec: Spec) -> str:
    """The YAML of a preset or an evaluation, from its package.

    Raises:
        PluginError: it cannot be read.
    """
    package, _, inside = spec.factory.partition(":")
    try:
        return importlib.resources.files(package).joinpath(inside).read_text(encoding="utf-8")
    except Exception as error:  # importing the plugin's package may raise anything
        raise PluginError(
            f"The {spec.kind} '{spec.name}' cannot be read from the file {inside} in package {package}: "
            f"{error_line(error)}."
        ) from error


def _read_preset(source: str, overrides: Sequence[str]) -> tuple[RunConfig, str]:
    try:
        _, spec = registry.find("preset", source)
    except PluginError as error:
        others = f" Nor is there a folder {source} in {Path.cwd()}. A config file ends in .yaml."
        raise ConfigError(f"{error}{'' if names_preset(source) else others}") from error
    return preset(spec, overrides), spec.name


def preset(spec: Spec, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of a preset, by what its plugin announces.

    Raises:
        PluginError: it cannot be read.
        ConfigError: it is wrong.
    """
    config = parse(preset_text(spec), f"preset {spec.name}", overrides)
    return with_own_names(config, spec)
