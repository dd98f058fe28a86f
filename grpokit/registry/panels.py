"""What a plugin puts on a run's page: sentences and tables, as plain data that can be tested without a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TypeAlias

from grpokit.errors import brief

Cell: TypeAlias = str | float | None
"""What stands in a table: a text, a number, or None for "not known"."""


@dataclass(frozen=True, kw_only=True)
class PanelTable:
    """A table of a panel. The page can download it as CSV, so give numbers as numbers.

    Attributes:
        caption: what it shows, for a screen reader and the name of the CSV file.
        head: the names of its columns; the first column names the rows.
        rows: a cell for each column.

    Raises:
        ValueError: a row has more or fewer cells than the head.
        TypeError: a cell is neither text nor number nor None.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"the table '{self.caption}' has {len(self.head)} columns, and a row {len(row)} cells")
            for cell in row:
                if not isinstance(cell, str | Real | None):
                    raise TypeError(f"a cell of the table '{self.caption}' is {brief(cell)}; expected text or a number")


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A section of a run's page.

    Attributes:
        title: its heading. Panels of several runs with the same title stand below one heading.
        text: paragraphs; the first one stands out, so let it be the answer in one sentence. A command stands between
            backticks, here and in cells.
        tables: what the text is taken from.

    Raises:
        TypeError: the text is one string, or the title is none.
    """

    title: str
    text: Sequence[str] = ()
    tables: Sequence[PanelTable] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.title, str) or not self.title:
            raise TypeError(f"a panel needs a title, got {brief(self.title)}")
        if isinstance(self.text, str) or not all(isinstance(paragraph, str) for paragraph in self.text):
            raise TypeError(f"the text of a panel is a list of paragraphs, got {brief(self.text)}")
