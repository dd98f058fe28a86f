"""Serves the page of runs while they go on: `grpokit watch`.

It only reads the run folders, takes no lock, and does nothing until a browser asks. A browser asks again and again with
the mark of what it has; the runs are read only where a file has changed since. New steps alone are read seldom, since
reading them takes time that a training beside it may need. On this computer's own address anybody
who sits at it may look, and a request must name that address, so that no page of the web can reach it through a name of
its own. Elsewhere a browser must know the token.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import http.server
import json
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from grpokit.errors import UsageError, one_line
from grpokit.remote.web import is_local, is_loopback
from grpokit.report.album import Linked, is_inside
from grpokit.report.page import distinct, page
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
    WARNINGS,
)
from grpokit.run_folder.reader import Run, read

_FILES = (CONFIG, VERSIONS, MACHINE, EVALUATIONS, WARNINGS, ATTRIBUTION, END, REPORT)
_REST, _LONGEST_REST = 333, 30.0  # times the seconds that a reading took; seconds
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Watched:
    """Runs that are read again when their files have changed.

    What is new is read at once, but for mere steps: they wait 30 s, or less where
    that keeps reading below three thousandths of the time.

    Args:
        folders: of the runs; one may not be there yet.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self._lock = threading.Lock()
        self._steps, self._rest, self._mark, self._view = "", "", "", b""
        self._due = 0.0  # when new steps may be read, on the monotonic clock

    def _state_of_steps(self) -> str:
        """Stands for the state of the files that grow with each step."""
        return _digest(_state(folder / METRICS) for folder in self.folders)

    def _state_of_rest(self) -> str:
        """Stands for the state of all other files that the page is made of."""
        return _digest(self._others())

    def _others(self) -> Iterator[bytes]:
        for folder in self.folders:
            yield f"{(folder / METRICS).exists()}{is_running(folder)}".encode()
            for name in _FILES:
                yield _state(folder / name)
            for kind in (SAMPLES, GROUPS):
                for place in sorted((folder / kind).glob("step_*")):
                    yield place.name.encode(errors="replace")
                    for name in (ROWS, SCORES):
                        yield _state(place / name)

    def view(self) -> tuple[str, bytes]:
        """The mark and the view as JSON. A run that cannot be read is a sentence that says why."""
        with self._lock:  # several browsers share the work
            steps, rest, start = self._state_of_steps(), self._state_of_rest(), time.monotonic()
            if rest != self._rest or (steps != self._steps and start >= self._due):
                self._view = json.dumps(_view(self.folders), allow_nan=False, separators=(",", ":")).encode()
                self._steps, self._rest, self._mark = steps, rest, _digest([steps.encode(), rest.encode()])
                end = time.monotonic()
                self._due = end + min(_REST * (end - start), _LONGEST_REST)
            return self._mark, self._view


def _digest(parts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:32]


def _state(path: Path) -> bytes:
    try:
        stat = path.stat()
    except OSError:
        return b"-"
    return f"{stat.st_size}.{stat.st_mtime_ns};".encode()


def _view(folders: Sequence[Path]) -> dict[str, object]:
    runs: list[Run] = []
    waiting = {}
    for number, folder in enumerate(folders):
        try:
            runs.append(read(folder))
        except (UsageError, OSError):  # an OSError: it vanishes while it is read
            waiting[number] = f"Waiting for {folder}: it is no run folder yet."
    if not waiting:
        try:
            return view(runs, [Linked(number) for number in range(len(runs))])
        except OSError as error:
            waiting = {
                number: f"The run cannot be read at the moment: {one_line(error)}." for number in range(len(runs))
            }
    return {
        "runs": [
            {
                "name": folder.resolve().name,
                "waiting": waiting.get(number, "It is there, and waits for the other runs."),
            }
            for number, folder in enumerate(folders)
        ]
    }


class Server(http.server.ThreadingHTTPServer):
    """Serves one page.

    Args:
        watched: the runs.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        token: what a browser must know; empty where none is needed.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, watched: Watched, host: str, port: int, token: str) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)
        self.watched, self.host, self.token = watched, host, token

    @property
    def address(self) -> str:
        """Where a browser on this computer finds the page."""
        own = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # of what listens on all addresses
        return self._address(own.get(self.host, self.host))

    @property
    def outside(self) -> str:
        """Where other computers find it, if the server listens on all addresses; else empty."""
        return self._address(socket.gethostname()) if self.host in ("", "0.0.0.0", "::") else ""

    def _address(self, name: str) -> str:
        name = f"[{name}]" if ":" in name else name
        return f"http://{name}:{self.server_address[1]}/{f'?token={quote(self.token)}' if self.token else ''}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing about a browser that went away."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "grpokit", ""
    timeout = 30  # seconds for a request that does not come

    def do_GET(self) -> None:
        """Answer with the page, the view or a picture."""
        try:
            url, is_local = urlsplit(self.path), self._is_local_name()
        except ValueError:  # half a pair of brackets
            self._answer(HTTPStatus.BAD_REQUEST, b"This is no address.\n")
            return
        if not is_local:
            self._answer(HTTPStatus.FORBIDDEN, b"This address is not the one that grpokit watch listens on.\n")
        elif not self._is_allowed(given := parse_qs(url.query).get("token", [""])[0]):
            self._answer(HTTPStatus.FORBIDDEN, b"Open the address that grpokit watch has printed, with its token.\n")
        elif given and url.path == "/":  # the browser keeps it in a cookie, out of the address
            cookie = f"{self._cookie}={quote(self.server.token)}; HttpOnly; SameSite=Lax; Path=/"
            self._answer(HTTPStatus.FOUND, b"", headers={"Location": "/", "Set-Cookie": cookie})
        elif url.path == "/":
            title = " and ".join(folder.resolve().name for folder in self.server.watched.folders)
            self._answer(HTTPStatus.OK, page(title=title), kind="text/html; charset=utf-8")
        elif url.path == "/view.json":
            self._send_view()
        elif url.path.startswith("/picture/"):
            self._send_picture(url.path)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"There is nothing here.\n")

    @property
    def _cookie(self) -> str:
        return f"grpokit-{self.server.server_address[1]}"

    def _is_local_name(self) -> bool:
        """Whether the request was made to an address of this computer; with a token, that is what decides."""
        if self.server.token:
            return True
        return is_local(self.headers, self.server.host)

    def _is_allowed(self, given: str) -> bool:
        if not self.server.token:
            return True
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie)
        except CookieError:
            cookie = None
        known = [given, unquote(cookie.value) if cookie else ""]
        return any(hmac.compare_digest(text.encode(), self.server.token.encode()) for text in known)

    def _send_view(self) -> None:
        mark, content = self.server.watched.view()
        etag = f'"{mark}"'
        if self.headers.get("If-None-Match") == etag:
            self._answer(HTTPStatus.NOT_MODIFIED, b"", headers={"ETag": etag})
        else:
            self._answer(HTTPStatus.OK, content, kind="application/json", headers={"ETag": etag})

    def _send_picture(self, path: str) -> None:
        """A PNG file of a run's samples; its address holds no part that could lead out of there."""
        parts = [unquote(part) for part in path.split("/")[2:]]
        folders = self.server.watched.folders
        if len(parts) == 4 and parts[0].isdecimal() and int(parts[0][:6]) < len(folders):
            number, kind, step, name = parts
            place = folders[int(number[:6])] / kind / step / name
            if not any(part in (".", "..") or "/" in part or "\\" in part for part in parts) and is_inside(place):
                try:
                    self._answer(HTTPStatus.OK, place.read_bytes(), kind="image/png", cache="private, max-age=86400")
                except OSError:
                    self._answer(HTTPStatus.NOT_FOUND, b"The picture is gone.\n")
                return
        self._answer(HTTPStatus.NOT_FOUND, b"There is no such picture.\n")

    def _answer(
        self,
        status: HTTPStatus,
        content: bytes,
        *,
        kind: str = "text/plain; charset=utf-8",
        cache: str = "no-store",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Cache-Control": cache, **(headers or {})}.items():
            self.send_header(name, value)
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: object) -> None:
        """Print nothing for a request."""


@contextmanager
def serving(folders: Sequence[Path], *, host: str = "127.0.0.1", port: int = 0, token: str = "") -> Iterator[Server]:
    """A server that listens, and is closed at the end.

    Args:
        folders: of the runs; one may not be there yet.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        token: what a browser must know. Where `host` is not this computer's own, one is made if it is empty.

    Raises:
        UsageError: the address cannot be listened on, a run is named twice, or a run is a file.
    """
    distinct(folders)
    for folder in folders:
        try:
            is_file = folder.is_file()
        except OSError as error:  # too long a name
            raise UsageError(f"{folder} cannot be a run folder: {one_line(error)}.") from error
        if is_file:
            raise UsageError(f"{folder} is a file; expected a run folder.")
    if not is_loopback(host) and not token:
        token = secrets.token_urlsafe(24)
    try:
        server = Server(Watched(folders), host, port, token)
    except (OSError, OverflowError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"Port {port} of {host} is in use, perhaps by another grpokit watch. Give another with --port, or "
                "--port 0 for a free one."
            ) from error
        raise UsageError(f"Cannot listen on {host}, port {port}: {one_line(error)}.") from error
    try:
        yield server
    finally:
        server.server_close()
