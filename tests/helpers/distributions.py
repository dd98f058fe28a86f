"""Distributions of one module, as pip leaves them in site-packages, as far as the registry looks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from grpokit import registry


def distribution(
    site: Path,
    name: str,
    plugin: str,
    module: str,
    *,
    requires: Sequence[str] = (),
    keywords: str = "",
    summary: str = "",
) -> None:
    """Write a distribution with a plugin: the module has the distribution's name, with underscores."""
    file = name.replace("-", "_").replace(".", "_")
    (site / f"{file}.py").write_text(module)
    info = site / f"{file}-1.0.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    about = f"Summary: {summary}\nKeywords: {keywords}\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{about}{needs}")
    (info / "entry_points.txt").write_text(f"[grpokit]\n{plugin} = {file}\n")


def announcing(kind: str, *specs: str) -> str:
    """A plugin's module that yields specs of a kind, such as "Reward", from the texts of their first arguments."""
    hook = {"Policy": "policies"}.get(kind, f"{kind.lower()}s")
    complete = [each if "factory=" in each else f"{each}, factory='builtins:len'" for each in specs]
    yields = "".join(f"    yield {kind}Spec({arguments})\n" for arguments in complete)
    return f"from grpokit import {kind}Spec, hookimpl\n\n\n@hookimpl\ndef grpokit_{hook}():\n{yields}"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of distributions that this process looks through."""
    monkeypatch.syspath_prepend(tmp_path)
    registry.plugins.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    registry.plugins.cache_clear()
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)
