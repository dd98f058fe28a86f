"""Serves a reward over HTTP: `grpokit serve-reward`.

The reward runs in worker processes of its own, so one that crashes or hangs costs an answer and not the service. Two
addresses: `GET /health` says what is served, and `POST /score` scores samples.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import signal
import socket
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from grpokit import PooledReward
from grpokit.rewards.submission import to_message
from grpokit_http.wire import PROTOCOL, WireError, from_json

MOST_BODY = 256 * 2**20
"""Bytes of a request."""

_PAUSE = 10.0  # seconds in which a request must come, besides those of its body
_SLOWEST = 100_000  # bytes a second of a body
_CONNECTIONS = 256
_LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[?::1\]?)(:\d+)?")


def is_loopback(host: str) -> bool:
    """Whether an address, or a request's Host header, means this computer alone.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]:80"), is_loopback("0.0.0.0"), is_loopback("localhost.example.org")
    (True, True, False, False)
    """
    return _LOOPBACK.fullmatch(host) is not None


class RewardService:
    """A reward that listens.

    Args:
        reward: in its worker processes; it is started here and ended by `run`.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        token: what a client must know; empty where none is needed.
        most_body: bytes of a request.

    Raises:
        OSError: it cannot listen there.
        GrpokitError: the reward cannot be built.
    """

    def __init__(
        self,
        reward: PooledReward,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str = "",
        most_body: int = MOST_BODY,
    ) -> None:
        self.reward, self.token, self.most_body, self.scored = reward, token, most_body, 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        self.port = self._socket.getsockname()[1]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        try:
            reward.start()
        except BaseException:
            self._socket.close()
            raise
        routes = [Route("/health", self._health), Route("/score", self._score, methods=["POST"])]
        self.server = _Server(
            uvicorn.Config(
                Starlette(routes=routes),
                http=_Protocol,
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                log_level="error",
                server_header=False,
                headers=[("Connection", "close")],  # so that each has one request
            )
        )

    def run(self) -> None:
        """Answer until Ctrl-C, SIGTERM or `server.should_exit`; what is being scored is finished first."""
        self.server.run(sockets=[self._socket])
        self.reward.close()

    async def _health(self, request: Request) -> Response:
        self._admit(request)
        health = {
            "protocol": PROTOCOL,
            "reward": self.reward.use,
            "params": self.reward.params,
            "samples": self.scored,
        }
        return Response(json.dumps(health), media_type="application/json")

    async def _score(self, request: Request) -> Response:
        self._admit(request)
        body = await _body(request, self.most_body)
        try:
            answer = await run_in_threadpool(self._answer, body)
        except WireError as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from error
        return Response(answer, media_type="application/json")

    def _answer(self, body: bytearray) -> str:
        samples = from_json(body)
        messages = [to_message(portion) for portion in self.reward.submit(samples)]
        self.scored += len(samples)
        return json.dumps({"portions": messages})

    def _admit(self, request: Request) -> None:
        """Refuse a stranger; a page of the web may let its own name point here."""
        if not self.token and not is_loopback(request.headers.get("Host", "")):
            raise HTTPException(HTTPStatus.FORBIDDEN, "Without a token this answers to a name of its machine only.")
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.token and not hmac.compare_digest(given.encode(), self.token.encode()):
            raise HTTPException(HTTPStatus.UNAUTHORIZED, "Expected the token, as `Authorization: Bearer ...`.")


async def _body(request: Request, most: int) -> bytearray:
    """What was sent: JSON, which no page of the web can send unasked, in time and not too much."""
    kind, _, _ = request.headers.get("Content-Type", "").partition(";")
    if kind.strip() != "application/json":
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Expected `Content-Type: application/json`.")
    length, body = int(request.headers.get("Content-Length", 0)), bytearray()  # h11 has refused what is not a number
    if length > most:
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A request has at most {most:,} bytes (--max-body).")
    try:
        async with asyncio.timeout(_PAUSE + length / _SLOWEST):
            async for part in request.stream():
                body += part
    except TimeoutError:
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, "The body does not come, or too slowly.") from None
    except ClientDisconnect:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "The body is shorter than its Content-Length.") from None
    return body


class _Server(uvicorn.Server):
    def handle_exit(self, *_: object) -> None:
        """Stop; a second signal ends the process at once."""
        print("stopping: what is being scored is finished first", flush=True)
        self.should_exit = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)


class _Protocol(H11Protocol):
    """A connection with limits, which uvicorn does not set."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.conn = _Requests(h11.SERVER)

    @property
    def waits(self) -> bool:
        """Whether its request has not come to its end."""
        return not self.cycle or self.cycle.more_body

    def connection_made(self, transport: Any) -> None:
        """Give the request its time; above the limit close the one that has waited longest."""
        super().connection_made(transport)
        self.patience = self.loop.call_later(_PAUSE, lambda: self.cycle or transport.close())
        connections: set[Any] = self.connections
        if len(connections) > _CONNECTIONS:
            waiting = [each for each in connections if each.waits]
            oldest = min(waiting, key=lambda each: each.patience.when())
            connections.discard(oldest)  # at once, since a burst of others may follow before it is lost
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it at once, since it holds what came."""
        super().connection_lost(exc)
        self.patience.cancel()

    def shutdown(self) -> None:
        """Finish what is being scored, and wait for no request."""
        if self.waits:
            self.transport.abort()
        else:
            super().shutdown()


class _Requests(h11.Connection):
    def next_event(self) -> Any:
        """Refuse a body in chunks: uvicorn would read a flood of them before it asks for the token."""
        event = super().next_event()
        if isinstance(event, h11.Request) and b"transfer-encoding" in dict(event.headers):
            raise h11.RemoteProtocolError("Expected a Content-Length.")
        return event
