"""A README as a package index shows it: links and pictures lead to the documentation's site and to the repository.

In the repository they are relative, so that they work in every clone and on every branch.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
RELATIVE = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def with_absolute_links(text: str) -> str:
    """A README of the repository's root, with an address in place of each path."""
    return RELATIVE.sub(lambda link: f"]({address(link[1])}", text)


def address(path: str) -> str:
    """Where a file of the repository is read: a page or a picture of docs on the site, others in the repository."""
    if not path.startswith("docs/"):
        return f"{URLS['Source']}/blob/main/{path}"
    page = path.removeprefix("docs/").replace("index.md", "")
    return f"{URLS['Documentation']}/{re.sub(r'[.]md$', '/', page)}"
