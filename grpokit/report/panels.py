"""The panels that plugins put on a run's page. One that raises costs its own panels, and the page says so in a line."""

from __future__ import annotations

import math
from typing import Any

from grpokit import registry
from grpokit.registry.panels import Cell, Panel, PanelTable
from grpokit.run_folder.reader import RunHistory


def panels_of(run: RunHistory) -> tuple[list[Panel], list[str]]:
    """The panels of all plugins, and a line for each plugin that could not make its own."""
    return registry.answers("grpokit_panels", _checked, run=run)


def panels_on_page(run: RunHistory) -> dict[str, Any]:
    """The part of a view that has a run's panels."""
    panels, failures = panels_of(run)
    return {
        "panels": [as_data(panel) for panel in panels],
        "missing_panels": [f"A panel is missing, since {line}" for line in failures],
    }


def _checked(result: Any) -> list[Panel]:
    """What a hook returned, if it is panels."""
    panels = list(result)
    for panel in panels:
        if not isinstance(panel, Panel):
            raise TypeError(f"it returned a {type(panel).__name__}; expected grpokit.Panel")
    return panels


def as_data(panel: Panel) -> dict[str, Any]:
    """A panel as JSON has it."""
    tables = [_table(table) for table in panel.tables]
    return {"title": panel.title, "text": list(panel.text), "tables": tables}


def _table(table: PanelTable) -> dict[str, Any]:
    rows = [[_cell(cell) for cell in row] for row in table.rows]
    return {"caption": table.caption, "head": list(table.head), "rows": rows}


def _cell(cell: Cell) -> Cell:
    """JSON has no NaN, and no number of another library."""
    if cell is None or isinstance(cell, str):
        return cell
    number = float(cell)
    return number if math.isfinite(number) else None
