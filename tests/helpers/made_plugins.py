"""Plugins made of a source each."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from grpokit import registry
from grpokit.registry import entry_points
from grpokit.registry.entry_points import Plugin


def install_only(folder: Path, patch: pytest.MonkeyPatch, **sources: str) -> None:
    """Make a plugin of each source, a light module of no distribution; only the core's stay installed beside them."""
    _install(folder, patch, [plugin for plugin in entry_points.plugins() if plugin.package == "grpokit"], sources)


def install(folder: Path, patch: pytest.MonkeyPatch, **sources: str) -> None:
    """Make a plugin of each source, beside those that are installed."""
    _install(folder, patch, [*entry_points.plugins()], sources)


def _install(folder: Path, patch: pytest.MonkeyPatch, plugins: list[Plugin], sources: dict[str, str]) -> None:
    patch.syspath_prepend(folder)
    for name, source in sources.items():
        module = f"made_plugin_{name}"
        (folder / f"{module}.py").write_text(source, encoding="utf-8")
        patch.delitem(sys.modules, module, raising=False)
        plugin = entry_points.load_plugin(EntryPoint(name, module, "grpokit"))
        assert not plugin.error
        plugins.append(plugin)
    patch.setattr(entry_points, "plugins", lambda: plugins)


@pytest.fixture
def core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the core is installed."""
    core = tuple(plugin for plugin in entry_points.plugins() if plugin.package == "grpokit")
    for module in (registry, entry_points):
        monkeypatch.setattr(module, "plugins", lambda: core)
