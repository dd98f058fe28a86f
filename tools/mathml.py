"""A hook of mkdocs: formulas between dollar signs become MathML, which browsers draw without a script or a font.

`$...$` stands in a line, `$$...$$` in a paragraph of its own. Code is left alone. A formula is a mark while Markdown is
read, so that its underscores and asterisks stay what they are.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

_CODE_OR_FORMULA = re.compile(
    r"^(?P<fence>`{3,}).*?^(?P=fence) *$|(?P<ticks>`+)[^`].*?(?P=ticks)"
    r"|\$\$(?P<block>.+?)\$\$|(?<![\\\w$])\$(?P<line>[^\s$](?:[^$\n]*[^\s$])?)\$(?!\w)",
    re.DOTALL | re.MULTILINE,
)
_MARK = "formula-{}-end"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put a mark in the place of each formula."""
    formulas: list[str] = []

    def mark(match: re.Match[str]) -> str:
        latex = match["block"] or match["line"]
        if latex is None:
            return match[0]
        formulas.append(convert(" ".join(latex.split()), display="block" if match["block"] else "inline"))
        return _MARK.format(len(formulas) - 1)

    text = _CODE_OR_FORMULA.sub(mark, markdown)
    page.meta["formulas"] = formulas
    return text


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Put the formulas back, one of its own paragraph into a box that scrolls on a phone."""
    for place, formula in enumerate(page.meta.get("formulas", [])):
        mark = _MARK.format(place)
        html = html.replace(f"<p>{mark}</p>", f'<div class="formula">{formula}</div>').replace(mark, formula)
    return html
