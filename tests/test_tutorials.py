"""Every tutorial is whole: its script and its notebook agree, its outputs are kept, and it says what it takes.

`make tutorials` runs them; here they are only read.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import jupytext
import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SIZE = 1_500_000  # bytes

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def test_script_and_notebook_have_the_same_cells(path: Path) -> None:
    script, notebook = jupytext.read(path.with_suffix(".py")), nbformat.read(path, 4)
    assert [(c.cell_type, c.source) for c in script.cells] == [(c.cell_type, c.source) for c in notebook.cells]
    mocks = [[c.metadata.get("nbmake") for c in book.cells] for book in (script, notebook)]
    assert mocks[0] == mocks[1], "run `python tools/tutorials.py`"


def test_outputs_are_kept_in_order_and_none_is_a_warning(path: Path) -> None:
    cells = code(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run `python tools/tutorials.py`"
    outputs = [
        output for cell in cells for output in cell.outputs if "raises-exception" not in cell.metadata.get("tags", ())
    ]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs), "a tutorial has pictures"
    assert path.stat().st_size < SIZE


def test_the_top_says_what_it_takes_and_the_rest_has_an_exercise(path: Path) -> None:
    cells = nbformat.read(path, 4).cells
    top = cells[0].source
    assert top.startswith("# ")
    assert f"tutorials/{path.name}" in top, "a Colab badge"
    assert re.search(r"\b(minute|minutes|seconds)\b", top), "how long it takes"
    assert re.search(r"\b(CPU|GPU|computer|laptop)\b", top), "and on which machine"
    install = cells[1].source
    assert "find_spec" in install
    assert "pip" in install
    exercise = next(i for i, cell in enumerate(cells) if re.search(r"^## .*Exercise", cell.source, re.MULTILINE))
    *_, own, check, solution = [cell for cell in cells[exercise:] if cell.cell_type == "code"]
    assert solution.metadata["tags"] == ["solution"]
    assert solution.metadata["jupyter"] == {"source_hidden": True}
    assert not _names(solution) & (_names(own) | _names(check)), "the reader's own answer stays"
    assert check.metadata["tags"] == ["raises-exception"]
    assert [output.ename for output in check.outputs if output.output_type == "error"] == ["AssertionError"]
    called = [line for line in check.source.splitlines() if line.startswith("check(")]
    assert {name for name in _names(own) if name in called[-1]}, "the check reads the reader's answer"
    assert "\ncheck(one_answer" in solution.source


def _names(cell: nbformat.NotebookNode) -> set[str]:
    """What a cell defines."""
    body = ast.parse(cell.source).body
    named = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    return named | {ast.unparse(node.targets[0]) for node in body if isinstance(node, ast.Assign)}


def test_only_public_names_are_used(path: Path) -> None:
    for cell in code(path):
        source = "\n".join(line for line in cell.source.splitlines() if not line.startswith(("%", "!")))
        for node in ast.walk(ast.parse(source)):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [part for alias in node.names for part in alias.name.split(".")]
            elif isinstance(node, ast.Attribute):
                names = [node.attr]
            assert not [name for name in names if name.startswith("_") and not name.startswith("__")]
    assert not re.search(r"/(home|root|tmp|work)/", path.read_text(encoding="utf-8")), "a path of one machine"
