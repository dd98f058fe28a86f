"""Serves a reward over HTTP: `grpokit serve-reward`.

The reward runs in worker processes of its own, so one that crashes or hangs costs an answer and not the service. Two
addresses: `GET /health` says what is served, and `POST /score` scores samples.
"""

from __future__ import annotations

import hmac
import http.server
import io
import json
import socket
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from grpokit.errors import reworded
from grpokit.remote.web import Timed, is_local
from grpokit.remote.wire import PROTOCOL, Limits, WireError, from_json
from grpokit.rewards.submission import Portion
from grpokit.rewards.worker_pool import PooledReward

MOST_BODY = 256 * 2**20
"""Bytes of a request."""

_PAUSE = 10.0  # seconds in which a request must come, besides those of its body
_SLOWEST = 100_000  # bytes a second of a request as a whole
_CONNECTIONS = 256


class RefusedError(Exception):
    """A request that gets a state and a sentence."""

    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.status = status


class RewardService(http.server.ThreadingHTTPServer):
    """A reward that listens.

    Args:
        reward: in its worker processes; it is started here and ended by `server_close`.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        token: what a client must know; empty where none is needed.
        limits: of a request.
        most_body: bytes of a request.

    Raises:
        OSError: it cannot listen there.
        GrpokitError: the reward cannot be built.
    """

    daemon_threads = True
    request_queue_size = _CONNECTIONS

    def __init__(
        self,
        reward: PooledReward,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str = "",
        limits: Limits | None = None,
        most_body: int = MOST_BODY,
    ) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.host, self.token, self.most_body = host, token, most_body
        self.reward, self.limits = reward, limits or Limits()
        self.scored, self.seconds, self.stopping = 0, 0.0, False
        self.busy = threading.Condition()
        self.at_work = 0
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__((host, port), _Handler)  # which closes again where it cannot listen
        try:
            reward.start()
        except BaseException:
            super().server_close()
            raise

    @property
    def address(self) -> str:
        """What clients are given."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.server_address[1]}"

    def health(self) -> dict[str, Any]:
        """What is served, and how much of it so far."""
        return {
            "protocol": PROTOCOL,
            "reward": self.reward.use,
            "params": self.reward.params,
            "workers": self.reward.workers,
            "most_body": self.most_body,
            "samples": self.scored,
            "seconds": round(self.seconds, 3),
        }

    def score(self, body: bytes) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            RefusedError: it cannot be read.
        """
        try:
            samples = from_json(body, self.limits)
        except WireError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, str(error)) from error
        start = time.monotonic()
        portions = [_plain(portion) for portion in self.reward.submit(samples)]
        with self.busy:
            self.scored += len(samples)
            self.seconds += time.monotonic() - start
        return {"portions": portions}

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, unless there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)  # the client tries again
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """As in the base class; gives the place free."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def server_close(self) -> None:
        """Finish what is being scored, and end the reward."""
        self.stopping = True
        super().server_close()  # a client that comes now is refused at once
        with self.busy:
            self.busy.wait_for(lambda: self.at_work == 0)
        self.reward.close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing about a client that went away."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: RewardService
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "grpokit", ""
    timeout = _PAUSE

    def setup(self) -> None:
        """As in the base class; what comes has a time to end."""
        super().setup()
        self._timed = Timed(self.rfile.detach(), self.connection, 0.0)
        self.rfile = io.BufferedReader(self._timed)

    def handle_one_request(self) -> None:
        """As in the base class."""
        self._timed.end = time.monotonic() + self.timeout
        super().handle_one_request()

    def do_GET(self) -> None:
        """Say what is served."""
        self._answered("/health", self.server.health)

    def do_POST(self) -> None:
        """Score samples."""
        self._answered("/score", lambda: self.server.score(self._body()))

    def _answered(self, path: str, work: Any) -> None:
        server = self.server
        try:
            if not server.token and not is_local(self.headers, server.host):
                raise RefusedError(HTTPStatus.FORBIDDEN, "Without a token this answers to a name of its machine only.")
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if server.token and not hmac.compare_digest(given.encode(), server.token.encode()):
                raise RefusedError(HTTPStatus.UNAUTHORIZED, "Expected the token, as `Authorization: Bearer ...`.")
            if self.path != path:
                raise RefusedError(HTTPStatus.NOT_FOUND, "There are GET /health and POST /score.")
            with server.busy:
                if server.stopping:
                    raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "The service is stopping.")
                server.at_work += 1
            try:
                self._send(HTTPStatus.OK, work())
            finally:
                with server.busy:
                    server.at_work -= 1
                    server.busy.notify_all()
        except RefusedError as refusal:
            self.close_connection = True  # what is left of its body was not read
            self._send(refusal.status, {"error": str(refusal)})

    def _body(self) -> bytes:
        """What was sent.

        Raises:
            RefusedError: it has no length, is too long, of another type, or comes too slowly.
        """
        if self.headers.get_content_type() != "application/json":  # which no page of the web can send unasked
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Expected `Content-Type: application/json`.")
        told, *others = self.headers.get_all("Content-Length", [""])
        if others or "Transfer-Encoding" in self.headers:  # a proxy may read another request than this does
            raise RefusedError(HTTPStatus.BAD_REQUEST, "Expected one `Content-Length`, and no `Transfer-Encoding`.")
        if not (told.isascii() and told.isdecimal()):
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "Expected the body's length in `Content-Length`.")
        length = int(told[:20])
        if length > self.server.most_body:
            raise RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"A request has at most {self.server.most_body:,} bytes (--max-body).",
            )
        parts, start = bytearray(), time.monotonic()
        try:
            while len(parts) < length:
                self._timed.end = start + self.timeout + len(parts) / _SLOWEST
                part = self.rfile.read1(min(1 << 20, length - len(parts)))
                if not part:
                    raise RefusedError(HTTPStatus.BAD_REQUEST, "The body is shorter than its Content-Length.")
                parts += part
        except TimeoutError:
            raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, "The body does not come, or too slowly.") from None
        return bytes(parts)

    def _send(self, status: HTTPStatus, answer: Mapping[str, Any]) -> None:
        content = json.dumps(answer).encode()
        self.connection.settimeout(self.timeout)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: object) -> None:
        """Print nothing for a request."""


def _plain(portion: Portion) -> dict[str, Any]:
    error = portion.error and [type(reworded(portion.error, "")).__name__, str(portion.error)]
    return {"rows": list(portion.rows), "values": portion.values, "failure": portion.failure, "error": error}
