"""Runs tutorials from their scripts and writes the notebooks, outputs included: `python tools/tutorials.py 02 07`.

Each notebook has a script with the same cells beside it, which is what people edit and review. Without an argument all
of them are run. Metadata that changes from run to run is left out.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "tutorials"


def execute(script: Path) -> None:
    """Run a script's cells and write the notebook beside it."""
    begun = time.monotonic()
    notebook = jupytext.read(script)
    place = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=1800, kernel_name="python3", coalesce_streams=True, resources=place).execute()
    notebook.metadata = nbformat.from_dict({"kernelspec": notebook.metadata["kernelspec"]})
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.pop("execution", None)
        cell.metadata.pop("lines_to_next_cell", None)
    nbformat.validate(notebook)
    script.with_suffix(".ipynb").write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    print(f"{script.stem}: {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    wanted = sys.argv[1:] or [""]
    for path in sorted(FOLDER.glob("*.py")):
        if any(path.name.startswith(word) for word in wanted):
            execute(path)
