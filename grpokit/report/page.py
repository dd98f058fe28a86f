"""The page of a run, or of several that are compared: one template, one style, one program, and the view it draws.

`grpokit report` freezes it into one file that opens offline: the view, the pictures and plotly are inside it. `grpokit
watch` serves the same page, which then polls for the view. The page's policy names the programs that may
run by their digests and allows no other origin; what came from data reaches the page as JSON, and is shown as text.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from plotly.offline import get_plotlyjs

from grpokit.errors import UsageError
from grpokit.files import replacing, writing
from grpokit.report.pictures import Inlined
from grpokit.report.sameness import sameness
from grpokit.report.verdict import alarms, headline
from grpokit.report.view import view
from grpokit.run_folder.names import COMPARISON, REPORT, REPORT_PICTURE
from grpokit.run_folder.reader import RunHistory, read_run

_PROGRAMS = {  # in the order in which they run
    "runs": ("dom.js", "follow.js", "samples.js", "curves.js", "panels.js", "tables.js", "compare.js", "app.js"),
    "index": ("dom.js", "follow.js", "index.js"),
}
_TITLE_ENDS = " · grpokit</title>".encode()  # in every page


def alarm(run: Path) -> str:
    """The report's alarm about held-out prompts: reward hacking, or one output for all; empty if there is no sign."""
    content = read_run(run)
    return alarms(headline(content), sameness(content))


def write(run: Path, *, out: Path | None = None) -> Path:
    """Write a run's page and return its path.

    Args:
        run: the run folder.
        out: the page's file; by default `report.html` in the run folder, with `report.png` next to it if matplotlib is
            installed.

    Raises:
        UsageError: it is not a run folder, or `out` is a folder or another file than a page.
        RunError: the page cannot be written.
    """
    content = read_run(run)
    path = page_file(out, run / REPORT)
    frozen = _frozen([content])
    try:
        if content.metrics and content.evaluations and out is None and find_spec("matplotlib"):
            from grpokit.report.run_figure import png

            write_whole(run / REPORT_PICTURE, png(content))
    finally:  # last, so that the report is whole where its page stands; an error in drawing costs the picture alone
        write_whole(path, frozen)
    return path


def compare(*runs: Path, out: Path | None = None) -> Path:
    """Compare runs with the first of them: write a page and return its path.

    Args:
        runs: the run folders.
        out: the page's file; by default `compare.html` in the last run's folder.

    Raises:
        UsageError: a folder is not a run folder, two are the same, it is only one, or `out` is a folder or another
            file than a page.
        RunError: the page cannot be written.
    """
    distinct(runs)
    if len(runs) < 2:
        raise UsageError(f"A comparison needs at least two runs; got {len(runs)}.")
    path = page_file(out, runs[-1] / COMPARISON)
    write_whole(path, _frozen([read_run(run) for run in runs]))
    return path


def distinct(runs: Sequence[Path]) -> None:
    """Refuse a run folder that is named twice.

    Raises:
        UsageError: two are the same.
    """
    first: dict[Path, Path] = {}
    for run in runs:
        if run.resolve() in first:
            raise UsageError(f"{first[run.resolve()]} and {run} are the same run folder; give each run once.")
        first[run.resolve()] = run


def page(
    *,
    title: str,
    content: Mapping[str, Any] | None = None,
    pictures: Mapping[str, str] | None = None,
    kind: Literal["runs", "index"] = "runs",
) -> bytes:
    """The page as one file.

    Args:
        title: its name in the browser.
        content: the view; None if the page requests it at `view.json`.
        pictures: data URIs by their names in the view.
        kind: of a run or several, or the index of a folder of runs, which has no charts.
    """
    program = _program(kind)
    programs = [program, get_plotlyjs()] if kind == "runs" else [program]
    sources = " ".join(f"'sha256-{_digest(text)}'" for text in programs)
    connects, images = ("'self'", "data: 'self'") if content is None else ("'none'", "data:")
    policy = (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; connect-src {connects}; "
        f"img-src {images}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": policy,
        "TITLE": html.escape(title, quote=False),
        "STYLE": _file("page.css"),
        "VIEW": _json(content),
        "PICTURES": _json(pictures or {}),
        "PLOTLY": _plotly() if kind == "runs" else "",
        "PROGRAM": program,
    }
    filled = re.sub(r"\{\{(.*?)\}\}", lambda place: parts[place[1]], _file("page.html"))
    return filled.encode(errors="backslashreplace")


def _frozen(runs: Sequence[RunHistory]) -> bytes:
    album = Inlined()
    title = " and ".join(run.title for run in runs)
    content = view(runs, [album] * len(runs))
    return page(title=title, content=content, pictures=album.pictures)


def _json(value: Any) -> str:
    """JSON for a script tag: what could end the tag, or begin a comment, is an escape in it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _file(name: str) -> str:
    return (resources.files("grpokit.report") / "templates" / name).read_text(encoding="utf-8")


@functools.cache
def _program(kind: str) -> str:
    parts = "\n".join(_file(name) for name in _PROGRAMS[kind])
    return f'(() => {{\n"use strict";\n{parts}\n}})();'


@functools.cache
def _plotly() -> str:
    """plotly, a fourth of its size: the browser unpacks it."""
    packed = gzip.compress(get_plotlyjs().encode(), mtime=0)
    return base64.b64encode(packed).decode()


def page_file(out: Path | None, default: Path) -> Path:
    """Where a page goes: `out`, if a page may be written there, or the default.

    Raises:
        UsageError: `out` is a folder, or another file than a page.
    """
    if out is not None and out.is_dir():
        raise UsageError(f"{out} is a folder; expected the page's file, such as {out / default.name}.")
    if out is not None and out.exists() and _TITLE_ENDS not in out.read_bytes():
        raise UsageError(f"{out} exists already and is no report. Choose another file with --out.")
    return out or default


def write_whole(path: Path, content: bytes) -> None:
    """Write a file completely or not at all; other processes may write it at the same time."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, shared=True) as temporary:
            temporary.write_bytes(content)
