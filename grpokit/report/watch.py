"""Serves the page of runs while they train: `grpokit watch`. Of a folder of runs it is the index, with a page for each.

It only reads the run folders, takes no lock, and does nothing until a browser asks. A browser polls with the ETag of
its last answer, and the runs are read only where a file has changed since. If only steps are new, they are read
seldom, since a training on the same machine may need that time. It listens on this computer's own address alone, and a
request must name that address, so no page of the web can reach it under another name.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

from grpokit.errors import UsageError, one_line
from grpokit.report.index import contents, runs_in
from grpokit.report.page import distinct, page
from grpokit.report.pictures import Linked, is_inside
from grpokit.report.view import view
from grpokit.run_folder.lock import is_running
from grpokit.run_folder.names import (
    ATTRIBUTION,
    CONFIG,
    END,
    EVALUATIONS,
    GROUPS,
    MACHINE,
    METRICS,
    REPORT,
    ROWS,
    SAMPLES,
    SCORES,
    VERSIONS,
    WAITING,
    WARNINGS,
)
from grpokit.run_folder.reader import read_run

_FILES = (CONFIG, VERSIONS, MACHINE, EVALUATIONS, WARNINGS, ATTRIBUTION, END, WAITING, REPORT)
_REST, _LONGEST_REST = 333, 30.0  # times the seconds that a reading took; seconds
_RUN = re.compile(r"/run/(?P<name>[^/]+)(?P<rest>/.*)")
_PICTURE = re.compile(rf"/picture/(?P<run>\d{{1,6}})/(?P<kind>{SAMPLES}|{GROUPS})/(?P<step>step_\d+)/(?P<name>[^/]+)")
LOCAL_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
"""The Host headers that a page on this computer's own address answers; `ssh -L` may change the port."""
LOCAL_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""What such a page answers with, so that no other page reads or frames it, and no browser keeps it."""


class Watched:
    """What one page shows: runs that are read again when their files have changed.

    What is new is read at once, but for mere steps: they wait 30 s, or less where
    that keeps reading below three thousandths of the time.

    Args:
        folders: gives those of the runs; one may not be there yet.
        show: makes the view of them.
        title: the page's name in the browser.
        kind: of the page.
    """

    def __init__(
        self,
        folders: Callable[[], Sequence[Path]],
        show: Callable[[], Mapping[str, Any]],
        *,
        title: str,
        kind: Literal["runs", "index"] = "runs",
    ) -> None:
        self.folders = folders
        self.show = show
        self.title = title
        self.kind = kind
        self._lock = threading.Lock()
        self._steps: list[object] = []
        self._others: list[object] | None = None
        self._mark = ""
        self._view = b""
        self._due = 0.0  # when new steps may be read, on the monotonic clock

    def view(self) -> tuple[str, bytes]:
        """The mark and the view as JSON. A run that cannot be read is a sentence that says why."""
        with self._lock:  # several browsers share the work
            folders = self.folders()
            steps = [_state(folder / METRICS) for folder in folders]
            others = _others_of(folders)
            start = time.monotonic()
            if others != self._others or (steps != self._steps and start >= self._due):
                content = json.dumps(self.show(), allow_nan=False, separators=(",", ":"))
                self._view = content.encode()
                self._mark = hashlib.sha256(self._view).hexdigest()
                self._steps = steps
                self._others = others
                end = time.monotonic()
                self._due = end + min(_REST * (end - start), _LONGEST_REST)
            return self._mark, self._view


def _others_of(folders: Sequence[Path]) -> list[object]:
    """Stands for all that pages are made of, but for the files that grow with each step."""
    state: list[object] = []
    for folder in folders:
        state += [folder, (folder / METRICS).exists(), is_running(folder)]
        state += [_state(folder / name) for name in _FILES]
        for kind in (SAMPLES, GROUPS):
            for place in sorted((folder / kind).glob("step_*")):
                state += [place, _state(place / ROWS), _state(place / SCORES)]
    return state


def _state(path: Path) -> object:
    """Stands for a file's content."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _of_runs(folders: Sequence[Path]) -> Watched:
    title = " and ".join(folder.resolve().name for folder in folders)
    return Watched(lambda: folders, lambda: _view(folders), title=title)


def _of_index(folder: Path) -> Watched:
    def address(run: Path) -> str:
        name = run.relative_to(folder).as_posix()
        return f"run/{quote(os.fsencode(name), safe='')}/"

    return Watched(
        lambda: list(runs_in(folder).values()),
        lambda: contents(runs_in(folder), address),
        title=folder.resolve().name,
        kind="index",
    )


def _view(folders: Sequence[Path]) -> dict[str, Any]:
    """The view of runs; where one of them cannot be read, why they wait."""
    try:
        runs = [read_run(folder) for folder in folders]
        return view(runs, [Linked(number) for number in range(len(runs))])
    except (UsageError, OSError) as error:  # an OSError: one vanishes while it is read
        why = f"Waiting for a run: {one_line(error)}"
        return {"runs": [{"name": folder.resolve().name, "waiting": why} for folder in folders]}


class Server(http.server.ThreadingHTTPServer):
    """Serves the page of runs to this computer; of a folder of runs the index, and a page for each run.

    Args:
        folders: of the runs, or one folder of runs.
        port: the port; 0 takes a free one.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, folders: Sequence[Path], port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.parent = folders[0] if len(folders) == 1 and runs_in(folders[0]) else None
        self.front = _of_index(self.parent) if self.parent else _of_runs(folders)
        self._pages: dict[str, Watched] = {}  # of runs in the index, by their names
        self.address = f"http://127.0.0.1:{self.server_port}/"

    def at(self, path: str) -> tuple[Watched, str]:
        """What is watched at an address, and the rest of the address."""
        match = _RUN.fullmatch(path)
        if self.parent and match:
            name = unquote(match["name"], errors="surrogateescape")
            run = runs_in(self.parent).get(name)
            if run:
                watched = self._pages.setdefault(name, _of_runs([run]))
                return watched, match["rest"]
        return self.front, path

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing about a browser that went away."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "grpokit", ""
    timeout = 30  # seconds for a request that does not come

    def do_GET(self) -> None:
        """Answer with the page, the view or a picture."""
        watched, path = self.server.at(self.path.partition("?")[0])
        if not LOCAL_HOST.fullmatch(self.headers.get("Host", "")):
            self._answer(HTTPStatus.FORBIDDEN, b"This address is not the one that grpokit watch listens on.\n")
        elif path == "/":
            content = page(title=watched.title, kind=watched.kind)
            self._answer(HTTPStatus.OK, content, kind="text/html; charset=utf-8")
        elif path == "/view.json":
            mark, content = watched.view()
            known = self.headers.get("If-None-Match") == f'"{mark}"'
            status = HTTPStatus.NOT_MODIFIED if known else HTTPStatus.OK
            self._answer(status, b"" if known else content, kind="application/json", headers={"ETag": f'"{mark}"'})
        elif picture := _picture(path, watched.folders()):
            self._answer(HTTPStatus.OK, picture, kind="image/png", headers={"Cache-Control": "private, max-age=86400"})
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"There is nothing here.\n")

    def _answer(
        self,
        status: HTTPStatus,
        content: bytes,
        *,
        kind: str = "text/plain; charset=utf-8",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        own = {"Content-Type": kind} | dict(headers or {})
        for name, value in (LOCAL_HEADERS | own).items():
            self.send_header(name, value)
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: object) -> None:
        """Print nothing for a request."""


def _picture(path: str, folders: Sequence[Path]) -> bytes:
    """A PNG file of a run's samples; empty where the address names none."""
    match = _PICTURE.fullmatch(path)
    if match is None or int(match["run"]) >= len(folders):
        return b""
    name = Path(unquote(match["name"])).name
    place = folders[int(match["run"])] / match["kind"] / match["step"] / name
    if is_inside(place):
        with suppress(OSError):  # it is gone
            return place.read_bytes()
    return b""


def serving(folders: Sequence[Path], *, port: int = 0) -> Server:
    """A server that listens on this computer's own address, to be closed by `with`.

    Args:
        folders: of the runs, of which one may not be there yet, or one folder of runs.
        port: the port; 0 takes a free one.

    Raises:
        UsageError: the port is in use, a run is named twice, or a run is a file.
    """
    distinct(folders)
    for folder in folders:
        if os.path.isfile(folder):  # unlike Path's, it is False for a name that no file can have
            raise UsageError(f"{folder} is a file; expected a run folder.")
    try:
        return Server(folders, port)
    except OSError as error:
        raise UsageError(
            f"Cannot listen on port {port}: {one_line(error)}. If another grpokit watch uses it, choose another with "
            "--port; 0 takes a free one."
        ) from error
