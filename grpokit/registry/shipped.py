"""What grpokit's own distributions bring, for those who have not installed them.

The core names no plugin: `tools/shipped_components.py` generates the data from the plugins of the repository.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Iterator


def owner(kind: str, name: str) -> str:
    """The distribution of grpokit's own that brings a component; empty for any other name.

    >>> owner("advantage", "group"), owner("reward", "group")
    ('grpokit', '')
    """
    return entry(kind, name).get("package", "")


def remedy(kind: str, name: str) -> str:
    """The command that brings a component of grpokit's own that is not installed; empty for any other name.

    >>> remedy("reward", "clip-score")
    " 'clip-score' comes with: pip install 'grpokit[clip]'"
    """
    command = install(kind, name)
    return f" '{name}' comes with: {command}" if command else ""


def install(kind: str, name: str) -> str:
    """The command that brings a component of a distribution of grpokit's own; empty for the core's and any other."""
    extra = entry(kind, name).get("extra", "")
    return f"pip install 'grpokit[{extra}]'" if extra else ""


def commands() -> dict[str, str]:
    """The commands that distributions of grpokit's own bring, with their summaries."""
    return {name: each["summary"] for kind, name, each in entries() if kind == "command" and "extra" in each}


def entries() -> Iterator[tuple[str, str, dict[str, str]]]:
    """The kind and the name of each component, and what is known of it."""
    for kind, named in _table().items():
        for name, each in named.items():
            yield kind, name, each


def entry(kind: str, name: str) -> dict[str, str]:
    """What is known of a component, nothing of one that is not grpokit's own; what is empty is left out.

    Its keys are "package", "extra", "summary", "needs", "takes", "keywords" of the distribution, "grade" of a reward's
    ladders, and "statistic" for a reward that is one.
    """
    return _table().get(kind, {}).get(name, {})


@functools.cache
def _table() -> dict[str, dict[str, dict[str, str]]]:
    file = importlib.resources.files("grpokit.registry").joinpath("shipped.json")
    return json.loads(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
