"""The library's folders import one way."""

from __future__ import annotations

from pathlib import Path

import architecture

PACKAGE = Path(__file__).parents[1] / "src/grpokit_hf"
FILES = sorted(PACKAGE.rglob("*.py"))
MAY_IMPORT = {"cpu": "", "models": "", "tokens": "cpu models", "diffusion": "models", "plan": "models diffusion"}


def own_imports(file: Path) -> list[list[str]]:
    """The modules of the library that a file imports, in parts: ["models", "adapters"]."""
    found = [each.module.split(".") for each in architecture.imports(file)]
    return [parts[1:] for parts in found if parts[0] == "grpokit_hf"]


def test_folders_import_one_way() -> None:
    for folder, allowed in MAY_IMPORT.items():
        used = {parts[0] for file in (PACKAGE / folder).glob("*.py") for parts in own_imports(file)}
        assert used <= {folder, *allowed.split()}, folder
    assert {file.parent.name for file in FILES if file.parent != PACKAGE} == set(MAY_IMPORT)
    assert not own_imports(PACKAGE / "__init__.py")


def test_importing_the_library_is_cheap() -> None:
    for file in PACKAGE.rglob("__init__.py"):
        assert not architecture.imports(file)
