"""Prints what plugins say on a run's page, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpokit.cli.app import console, grid

if TYPE_CHECKING:
    from grpokit.registry.panels import Cell, Panel


def print_panels(panels: Sequence[Panel]) -> None:
    """The sentences and tables of panels, one below the other."""
    for panel in panels:
        print(f"\n{panel.title}")
        for paragraph in panel.text:
            console().print(paragraph, markup=False, highlight=False)
        for table in panel.tables:
            print()
            rows = [[_text(cell) for cell in row] for row in table.rows]
            console().print(grid(table.head, rows))
    if panels:
        print()


def _text(cell: Cell) -> str:
    """A cell as a terminal shows it."""
    if cell is None or isinstance(cell, str):
        return cell or "-"
    return f"{cell:.3f}".replace("nan", "-")
