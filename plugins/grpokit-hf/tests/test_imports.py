"""The library's folders import one way, its files in no circle, and it declares what it imports."""

from __future__ import annotations

from graphlib import TopologicalSorter
from pathlib import Path

import architecture
import pytest

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "src/grpokit_hf"
FILES = sorted(PACKAGE.rglob("*.py"))
MAY_IMPORT = {"cpu": "", "models": "", "plan": "models", "tokens": "cpu models", "diffusion": "models"}


def own_imports(file: Path) -> list[list[str]]:
    """The modules of the library that a file imports, in parts: ["models", "adapters"]."""
    found = [each.module.split(".") for each in architecture.imports(file)]
    return [parts[1:] for parts in found if parts[0] == "grpokit_hf"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_it_declares_what_it_imports(file: Path) -> None:
    assert architecture.undeclared(file, PROJECT) == []


def test_folders_import_one_way() -> None:
    for folder, allowed in MAY_IMPORT.items():
        used = {parts[0] for file in (PACKAGE / folder).glob("*.py") for parts in own_imports(file)}
        assert used <= {folder, *allowed.split()}, folder
    assert {file.parent.name for file in FILES if file.parent != PACKAGE} == set(MAY_IMPORT)
    assert not own_imports(PACKAGE / "__init__.py")


def test_files_import_in_no_circle() -> None:
    graph = {}
    for file in FILES:
        used = {"/".join(parts) for parts in own_imports(file)}
        graph[str(file.relative_to(PACKAGE).with_suffix(""))] = used
    TopologicalSorter(graph).prepare()


def test_importing_the_library_is_cheap() -> None:
    for file in PACKAGE.rglob("__init__.py"):
        assert not architecture.imports(file)
