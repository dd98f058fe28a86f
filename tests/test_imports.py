"""Imports point one way: the table below is the architecture, and an upward edge fails."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import grpokit

PACKAGE = Path(grpokit.__file__).parent

# Each module with the modules of grpokit that it may import; a row may name rows above it only. A new module needs a
# row: put it as far up as it can go.
MAY_IMPORT = {
    "errors": "",
    "specs": "",
    "hookspecs": "specs",
    "registry": "errors specs hookspecs",
    "scaffold": "errors registry",
    "source": "errors",
    "config": "errors source",
    "presets": "errors registry config",
    "intervals": "",
    "images": "errors",
    "pictures": "errors",
    "report": "errors config intervals images",
    "types": "errors",
    "builtin": "errors specs hookspecs images types",  # what a third party may import, and no more
    "sampling": "types",
    "schedule": "",
    "devices": "errors",
    "policy": "errors types",
    "serving": "errors registry types",
    "answers": "errors types",
    "workers": "errors specs registry types serving answers",
    "reward": "errors types answers workers",
    "advantages": "errors types",
    "objectives": "errors types",
    "flow": "errors types objectives",
    "data": "errors types pictures sampling",
    "outputs": "errors types pictures data",
    "scorefiles": "errors specs registry intervals types reward outputs",
    "checkpoint": "errors types policy",
    "pieces": "errors types sampling",
    "checked": "errors types policy pieces",
    "memory": "errors",
    "metrics": "errors types reward advantages",
    "guards": "errors types reward advantages checked",
    "monitors": "errors reward",
    "backward": "types objectives pieces checked metrics",
    "evaluation": "errors intervals types devices sampling policy reward data pieces memory checked",
    "testing": "errors specs types sampling policy reward objectives registry pieces",
    "trainer": "errors types sampling schedule devices policy reward advantages objectives data checkpoint pieces "
    "checked memory metrics guards monitors backward",
    "build": "errors specs registry config types devices workers policy reward advantages objectives data trainer",
    "checking": "errors registry config presets types evaluation testing build",
    "folder": "errors registry source config report types images reward evaluation",
    "record": "errors types reward",
    "rescore": "errors presets registry types advantages reward build record",
    "redraw": "errors presets config report types reward checkpoint trainer build folder record",
    "run": "errors registry config presets report types policy reward data checkpoint monitors evaluation trainer "
    "build folder record",
    "progress": "errors types evaluation trainer run",
    "cli": "errors presets registry source config pictures report types reward data outputs scorefiles checkpoint "
    "evaluation trainer build folder run progress testing checking rescore redraw scaffold",
    "__main__": "cli",
}
NO_TORCH = ["errors", "specs", "hookspecs", "registry", "source", "config", "presets", "cli", "types", "__init__"]
NO_TORCH += ["__main__"]
TORCH = {"torch", "accelerate", "safetensors"}
LIGHT = {
    "errors",
    "specs",
    "hookspecs",
    "registry",
    "source",
    "config",
    "types",
}  # what a module without torch may import at once


@dataclass(frozen=True)
class Import:
    file: Path
    line: int
    module: str  # dotted
    inside: bool  # a function's body, so not run on import

    @property
    def row(self) -> str:
        """Which row of the table it names: the part after `grpokit.`, or nothing."""
        top, _, rest = self.module.partition(".")
        return rest.partition(".")[0] if top == "grpokit" else ""

    def __str__(self) -> str:
        return f"{self.file.relative_to(PACKAGE.parent)}:{self.line} imports {self.module}"


def imports(file: Path) -> list[Import]:
    """All imports of a file except those for type checkers."""
    return list(_walk(file, ast.parse(file.read_text(encoding="utf-8")), False))


def _walk(file: Path, node: ast.AST, inside: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(file, child.lineno, alias.name, inside)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{file}:{child.lineno} is a relative import"
            for alias in child.names:
                yield Import(file, child.lineno, _home(child.module or "", alias.name), inside)
        else:
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _walk(file, child, inside or function)


def _home(module: str, name: str) -> str:
    """`from grpokit import Prompt` is an import of grpokit.types, `from grpokit import run` one of grpokit.run."""
    if module == "grpokit":
        return "grpokit." + grpokit._MODULE_OF.get(name, name)
    return module


def row_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def files_of(module: str) -> list[Path]:
    return [file for file in PACKAGE.rglob("*.py") if row_of(file) == module]


FILES = sorted(f for f in PACKAGE.rglob("*.py") if f != PACKAGE / "__init__.py" and row_of(f) != "templates")


def test_the_table_itself_points_one_way() -> None:
    above: set[str] = set()
    for module, allowed in MAY_IMPORT.items():
        assert set(allowed.split()) <= above, f"{module} names rows below it: {set(allowed.split()) - above}"
        above.add(module)


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_no_upward_import(file: Path) -> None:
    module = row_of(file)
    assert module in MAY_IMPORT, f"{module} has no row in MAY_IMPORT: say what it may import"
    allowed = {"", module, *MAY_IMPORT[module].split()}
    upward = [i for i in imports(file) if i.row not in allowed]
    assert not upward, "; ".join(
        f"{i}, but {module} may import only: {MAY_IMPORT[module] or 'nothing'}" for i in upward
    )


def test_the_walk_sees_what_it_should(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "from grpokit import Prompt, run\nimport grpokit.cli\nif TYPE_CHECKING:\n    import torch\n"
        "class C:\n    import b\n    def f(self):\n        if 1:\n            from c.d import e\n"
        "try:\n    import g\nexcept ImportError:\n    import h\n"
    )
    assert [(i.row or i.module, i.inside) for i in imports(file)] == [
        ("types", False),
        ("run", False),
        ("cli", False),
        ("b", False),
        ("c.d", True),
        ("g", False),
        ("h", False),
    ]


@pytest.mark.parametrize("file", [*FILES, PACKAGE / "__init__.py"], ids=lambda f: str(f.relative_to(PACKAGE)))
def test_the_core_knows_no_plugin(file: Path) -> None:
    assert not [str(i) for i in imports(file) if i.module.startswith("grpokit_")]


@pytest.mark.parametrize("module", NO_TORCH)
def test_no_torch_before_it_is_needed(module: str) -> None:
    heavy = [str(i) for file in files_of(module) for i in imports(file) if i.module.partition(".")[0] in TORCH]
    assert not heavy, "import it inside the function that needs it, or under TYPE_CHECKING"


@pytest.mark.parametrize("module", [m for m in NO_TORCH if m != "__main__"])
def test_no_heavy_module_before_it_is_needed(module: str) -> None:
    early = {i.row for file in files_of(module) for i in imports(file) if not i.inside}
    assert early <= LIGHT | {"", module}, "; ".join(early - LIGHT)


def test_the_lazy_names_are_the_checked_ones() -> None:
    """`__init__` names each public thing twice: for readers of types, and for the first use."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    typed = {
        alias.name: (node.module or "").removeprefix("grpokit.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grpokit.")
        for alias in node.names
    }
    assert typed == grpokit._MODULE_OF


def test_no_folder_is_called_plugins() -> None:
    assert not [p for p in PACKAGE.rglob("plugins") if p.is_dir()]


@pytest.mark.parametrize("command", [["train", "toy-lm"], ["sample", "toy-lm"], ["score", "x", "--config", "toy-lm"]])
def test_a_typo_is_told_before_torch_is_imported(command: list[str]) -> None:
    code = (
        "import sys\nfrom grpokit import cli\ntry:\n    cli.main()\nexcept SystemExit as end:\n"
        "    print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command, "sed=1"], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
    assert done.stderr.startswith("error: override 'sed=1': unknown key 'sed' (did you mean 'seed'?)")
