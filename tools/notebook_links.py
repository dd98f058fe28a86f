"""A hook of mkdocs: in a notebook, links to what lies beside it lead to the site's pages and files."""

from __future__ import annotations

import logging
import posixpath
import re
from typing import Any

_RELATIVE = re.compile(r'(?P<start>\b(?:href|src)=")(?P<name>[^"#:?/][^"#:?]*)(?=["#?])')
_log = logging.getLogger("mkdocs.hooks")


def on_page_content(html: str, page: Any, files: Any, **_: Any) -> str:
    """Give each link its address on the site; a warning, which fails a strict build, names one that leads nowhere."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html

    def address(match: re.Match[str]) -> str:
        file = files.get_file_from_path(posixpath.join(posixpath.dirname(page.file.src_uri), match["name"]))
        if file is None:
            _log.warning("%s links to %s, which is not there", page.file.src_uri, match["name"])
            return match[0]
        return match["start"] + file.url_relative_to(page.file)

    return _RELATIVE.sub(address, html)
