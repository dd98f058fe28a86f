"""What grpokit's own distributions bring, for those who have not installed them.

The core names no plugin: `tools/shipped_components.py` generates the data from the plugins of the repository.
"""

from __future__ import annotations

import functools
import importlib.resources
import json


def owner(kind: str, name: str) -> str:
    """The distribution of grpokit's own that brings a component; empty for any other name.

    >>> owner("advantage", "group"), owner("reward", "group")
    ('grpokit', '')
    """
    return _entry(kind, name).get("package", "")


def remedy(kind: str, name: str) -> str:
    """The command that brings a component of grpokit's own that is not installed; empty for any other name.

    >>> remedy("reward", "clip-score")
    " 'clip-score' comes with: pip install 'grpokit[clip]'"
    """
    extra = _entry(kind, name).get("extra", "")
    return f" '{name}' comes with: pip install 'grpokit[{extra}]'" if extra else ""


def commands() -> dict[str, str]:
    """The commands that distributions of grpokit's own bring, with their summaries."""
    entries = _table()["command"]
    return {name: entry["summary"] for name, entry in entries.items() if entry["extra"]}


def _entry(kind: str, name: str) -> dict[str, str]:
    return _table().get(kind, {}).get(name, {})


@functools.cache
def _table() -> dict[str, dict[str, dict[str, str]]]:
    """Kind -> name -> "package", "extra" and, for a plugin's command, "summary"."""
    file = importlib.resources.files("grpokit.registry").joinpath("shipped.json")
    return json.loads(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
