"""Plugins made of a source each, as if nothing else were installed."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from grpokit.registry import entry_points


def install_only(folder: Path, patch: pytest.MonkeyPatch, **sources: str) -> None:
    """Make a plugin of each source, a light module; no others are installed."""
    patch.syspath_prepend(folder)
    plugins = []
    for name, source in sources.items():
        module = f"made_plugin_{name}"
        (folder / f"{module}.py").write_text(source, encoding="utf-8")
        patch.delitem(sys.modules, module, raising=False)
        plugins.append(entry_points.load_plugin(EntryPoint(name, module, "grpokit")))
    assert not [plugin.error for plugin in plugins if plugin.error]
    patch.setattr(entry_points, "plugins", lambda: plugins)
