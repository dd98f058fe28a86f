"""The page on which people vote, served to this computer alone.

All that counts stands in the run's files. The service remembers only who looks at which question, so that two people
get different ones. It may be killed and started again at any time.
"""

from __future__ import annotations

import base64
import hashlib
import random
import re
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from grpokit.errors import RunError
from grpokit.files import parse_json
from grpokit.run_folder.lock import is_running
from grpokit_vote.answers import agreement, is_answer, open_pairs
from grpokit_vote.ballots import Ballot, BallotBox, Vote, by_ballot

MOST_BODY = 64_000
"""Bytes of a request."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")  # with any port: that of `ssh -L` may be another
_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")  # of a voter, a vote or a ballot
_SAMPLE = re.compile(r"[0-9a-f]{32}\.(png|txt)")
_REPEAT_EVERY = 20  # questions of a voter
_REST = 5  # questions before the same may come again
_LOOK = 60.0  # seconds that a question is left to the person who looks at it

_Place: TypeAlias = tuple[str, ...]  # a ballot's key, and of "pairs" the two samples
_Questions: TypeAlias = Mapping[_Place, Ballot]


class VoteService:
    """Serves the page of a run.

    Args:
        run: the run folder, which may not be there yet.
        port: the port; 0 takes a free one.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, run: Path, port: int = 0) -> None:
        self.run_folder, self.box = run, BallotBox(run)
        self._looks: dict[str, tuple[_Place, float]] = {}  # voter -> what they look at, since when
        self._page, policy = _page()
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/"
        routes = [
            Route("/", self._front),
            Route("/next", self._next),
            Route("/sample/{name}", self._sample),
            Route("/vote", self._vote, methods=["POST"]),
            Route("/undo", self._undo, methods=["POST"]),
        ]
        admission = Middleware(BaseHTTPMiddleware, dispatch=_admit)
        app = Starlette(routes=routes, middleware=[admission], exception_handlers={RunError: _full, OSError: _full})
        headers = [*_HEADERS.items(), ("Content-Security-Policy", policy)]
        config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, log_level="error", headers=headers)
        config.timeout_graceful_shutdown = 1
        self.server = uvicorn.Server(config)

    def run(self) -> None:
        """Answer until Ctrl-C, SIGTERM or `server.should_exit`."""
        self.server.run(sockets=[self._socket])

    async def _front(self, request: Request) -> Response:
        return Response(self._page, media_type="text/html")

    async def _sample(self, request: Request) -> Response:
        place = self.box.samples / request.path_params["name"]
        if not _SAMPLE.fullmatch(place.name) or not place.is_file():
            raise HTTPException(404, "There is no such sample.")
        return FileResponse(place)

    async def _next(self, request: Request) -> Response:
        """What a voter is asked now; nothing of it tells a step, a score or the order of the rows."""
        voter = _name(request.query_params, "voter")
        votes = self.box.votes()
        own = [vote for vote in votes if vote.voter == voter]
        agreed = agreement(own)
        questions = self._questions(votes)
        works = is_running(self.run_folder)
        content = {
            "state": "drawing" if works else "ended" if self.box.folder.exists() else "absent",
            "works": works,
            "waiting": len(questions),
            "given": len(own),
            "agreement": asdict(agreed) | {"better": agreed.better},
        }
        if questions:
            content |= self._asked(voter, own, questions)
        return JSONResponse(content)

    def _questions(self, votes: Sequence[Vote]) -> dict[_Place, Ballot]:
        """What nobody has answered, the oldest first."""
        questions = {}
        answers = by_ballot(votes)
        for ballot in self.box.waiting():
            for pair in open_pairs(ballot, answers.get(ballot.key, [])):
                questions[ballot.key, *pair] = ballot
        return questions

    def _asked(self, voter: str, own: Sequence[Vote], questions: _Questions) -> dict[str, Any]:
        """The question for a voter."""
        repeat = self._repeat(own)
        place, ballot = repeat or self._choose(voter, questions)
        samples = list(place[1:] or ballot.samples)
        random.Random(f"{voter} {place} {len(own)}").shuffle(samples)  # so that a restart changes nothing
        left = None if ballot.until is None or repeat else max(0.0, ballot.until - time.time())
        asked = {"state": "ask", "ballot": ballot.key, "pair": place[1:], "again": repeat is not None}
        return asked | {"samples": samples, "left": left} | _part(ballot, "prompt", "sources", "question", "how")

    def _repeat(self, own: Sequence[Vote]) -> tuple[_Place, Ballot] | None:
        """Each 20th question is the oldest that a voter has answered and was not asked again."""
        if (len(own) + 1) % _REPEAT_EVERY:
            return None
        repeats = {_place(vote) for vote in own if vote.again}
        for vote in own[:-_REST]:
            known = self.box.find(vote.ballot)
            if known and _place(vote) not in repeats:
                return _place(vote), known[0]
        return None

    def _choose(self, voter: str, questions: _Questions) -> tuple[_Place, Ballot]:
        """What the voter looks at already, else what nobody else looks at."""
        now = time.monotonic()
        mine, _ = self._looks.get(voter, ((), 0.0))
        others = {place for name, (place, since) in self._looks.items() if name != voter and now - since < _LOOK}
        place = min(questions, key=lambda place: (place != mine, place in others))
        if place != mine:
            self._looks[voter] = place, now
        return place, questions[place]

    async def _vote(self, request: Request) -> Response:
        """Write a vote down, once."""
        content = await _body(request)
        sent = {name: _name(content, name) for name in ("id", "voter", "ballot")}
        answer, pair = content.get("answer"), content.get("pair")
        if not isinstance(pair, list):
            pair = []
        if not self.box.find(sent["ballot"]):
            raise HTTPException(404, "The question is not one of this run.")
        with self.box.lock:
            known = self.box.find(sent["ballot"])
            if known is None or not is_answer(known[0], answer, pair):
                raise HTTPException(400, "This is no answer to the question.")
            ballot, waits = known
            asked = _part(ballot, "question", "prompt", "how", "samples")
            again = content.get("again") is True
            vote = Vote(**sent, **asked, time=time.time(), answer=answer, pair=pair, again=again)
            if all(vote.id != other.id for other in self.box.votes()):
                self.box.add(vote)
        return JSONResponse({"late": not (waits or again)})

    async def _undo(self, request: Request) -> Response:
        """Take a voter's last vote back, unless the run has used it."""
        voter = _name(await _body(request), "voter")
        own = [vote for vote in self.box.votes() if vote.voter == voter]
        if not own:
            raise HTTPException(409, "You have not voted yet.")
        last = own[-1]
        with self.box.lock:
            known = self.box.find(last.ballot)
            if not last.again and not (known and known[1]):
                raise HTTPException(409, "The run has already learned from your last vote.")
            self.box.take_back(last)
        self._looks[voter] = _place(last), time.monotonic()
        return JSONResponse({})


def _place(vote: Vote) -> _Place:
    return vote.ballot, *vote.pair


def _part(ballot: Ballot, *names: str) -> dict[str, Any]:
    return {name: getattr(ballot, name) for name in names}


async def _admit(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """Refuse other pages of the web, which may let their names point here."""
    host = request.headers.get("Host", "")
    origin = request.headers.get("Origin", f"http://{host}")
    kind, _, _ = request.headers.get("Content-Type", "").partition(";")
    if not _HOST.fullmatch(host) or origin != f"http://{host}":
        return PlainTextResponse("This address is not the one that grpokit vote listens on.", 403)
    if request.method == "POST" and kind.strip() != "application/json":
        return PlainTextResponse("Expected `Content-Type: application/json`.", 415)
    return await answer(request)


async def _full(request: Request, error: Exception) -> Response:
    """A full disk, or a folder without permission, in words."""
    return PlainTextResponse(str(error), 507)


async def _body(request: Request) -> dict[str, Any]:
    """The object that was sent."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MOST_BODY:
                raise HTTPException(413, f"A request has at most {MOST_BODY:,} bytes.")
        content = parse_json(bytes(body))
    except (ValueError, ClientDisconnect):
        content = None
    if not isinstance(content, dict):
        raise HTTPException(400, "Expected a JSON object.")
    return content


def _name(content: Mapping[str, Any], key: str) -> str:
    """One of the names in a request."""
    name = content.get(key)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise HTTPException(400, f"Expected `{key}`, of at most 64 letters, digits and hyphens.")
    return name


def _page() -> tuple[str, str]:
    """The page, and the policy that lets nothing but its own program and style work."""
    folder = resources.files("grpokit_vote") / "page"
    page, style, program = ((folder / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    policy = (
        f"default-src 'none'; script-src '{_digest(program)}'; style-src '{_digest(style)}'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.replace("{{STYLE}}", style).replace("{{PROGRAM}}", program), policy


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
