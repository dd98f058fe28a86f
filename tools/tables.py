"""A hook of mkdocs: tables that Python-Markdown would draw in another way than GitHub, or too narrow for their text.

Inside code a bar of a table is written `\\|`, as GitHub wants it; Python-Markdown would show the backslash. A cell with
a sentence gets the class "long", so that it stays wide enough to read where the table is wider than a phone.
"""

from __future__ import annotations

import re
from typing import Any

_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_CODE = re.compile(r"`[^`]*`")
_CELL = re.compile(r"<(t[dh])([^>]*)>(.*?)</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
SENTENCE = 25  # letters from which a cell counts as long


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let bars inside a table's code stand without a backslash."""

    def row(match: re.Match[str]) -> str:
        return _CODE.sub(lambda code: code[0].replace("\\|", "|"), match[0])

    return _ROW.sub(row, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Mark the cells that hold a sentence."""

    def cell(match: re.Match[str]) -> str:
        tag, attributes, content = match.groups()
        if len(_TAG.sub("", content)) < SENTENCE or "class=" in attributes:
            return match[0]
        return f'<{tag}{attributes} class="long">{content}</{tag}>'

    return _CELL.sub(cell, html)
