"""The page on which people vote, served to this computer alone.

All that counts stands in the run's files. The service remembers only who looks at which question, so that two people
get different ones; it may be killed and started again at any time.
"""

from __future__ import annotations

import base64
import hashlib
import random
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from grpokit.errors import RunError
from grpokit.files import parse_json
from grpokit.run_folder.lock import is_running
from grpokit_vote.answers import agreement, is_answer, open_pairs
from grpokit_vote.ballots import Ballot, BallotBox, Vote

MOST_BODY = 64_000
"""Bytes of a request."""

_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")  # with any port: that of `ssh -L` may be another
_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")  # of a voter, a vote or a ballot
_SAMPLE = re.compile(r"[0-9a-f]{32}\.(png|txt)")
_KINDS = {".png": "image/png", ".txt": "text/plain; charset=utf-8"}

_REPEAT_EVERY = 20  # questions of a voter
_REST = 5  # questions before the same may come again
_LOOK = 60.0  # seconds that a question is left to the person who looks at it


@dataclass(frozen=True, kw_only=True)
class _Question:
    """A ballot, or one pair of it."""

    ballot: Ballot
    pair: Sequence[str]
    again: bool = False

    @property
    def place(self) -> tuple[str, ...]:
        return self.ballot.key, *self.pair


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
        self._looks: dict[str, tuple[tuple[str, ...], float]] = {}  # voter -> question, since when
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
        headers = {
            "Cache-Control": "no-store",
            "Content-Security-Policy": policy,
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }
        self.server = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=_admit)]),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                server_header=False,
                headers=list(headers.items()),
                timeout_graceful_shutdown=1,
            )
        )

    def run(self) -> None:
        """Answer until Ctrl-C, SIGTERM or `server.should_exit`."""
        self.server.run(sockets=[self._socket])

    async def _front(self, request: Request) -> Response:
        return Response(self._page, media_type="text/html")

    async def _sample(self, request: Request) -> Response:
        name = request.path_params["name"]
        place = self.box.sample(name)
        if not _SAMPLE.fullmatch(name) or not place.is_file():
            raise HTTPException(404, "There is no such sample.")
        return Response(place.read_bytes(), media_type=_KINDS[place.suffix])

    async def _next(self, request: Request) -> Response:
        """What a voter is asked now; nothing of it tells a step, a score or the order of the rows."""
        voter = _name(request.query_params, "voter")
        votes = self.box.votes()
        own = [vote for vote in votes if vote.voter == voter]
        questions = self._questions(votes)
        works = is_running(self.run_folder)
        content: dict[str, Any] = {"works": works, "waiting": len(questions), "given": len(own)}
        agreed = agreement(own)
        content["agreement"] = asdict(agreed) | {"better": agreed.better}
        if not questions:
            begun = self.box.folder.exists()
            return JSONResponse(content | {"state": "drawing" if works else "ended" if begun else "absent"})
        question = self._repeat(own) or self._choose(voter, questions)
        ballot = question.ballot
        samples = list(question.pair or ballot.samples)
        random.Random(f"{voter} {question.place} {len(own)}").shuffle(samples)  # the same order after a restart
        asked = {
            "state": "ask",
            "ballot": ballot.key,
            "pair": question.pair,
            "again": question.again,
            "samples": samples,
            "left": None if ballot.until is None or question.again else max(0.0, ballot.until - time.time()),
        }
        shown = {name: getattr(ballot, name) for name in ("prompt", "sources", "question", "how")}
        return JSONResponse(content | shown | asked)

    def _questions(self, votes: Sequence[Vote]) -> list[_Question]:
        """What nobody has answered, the oldest first."""
        by_ballot: dict[str, list[Vote]] = {}
        for vote in votes:
            by_ballot.setdefault(vote.ballot, []).append(vote)
        questions = []
        for ballot in self.box.waiting():
            pairs = open_pairs(ballot, by_ballot.get(ballot.key, []))
            questions += [_Question(ballot=ballot, pair=pair) for pair in pairs]
        return questions

    def _repeat(self, own: Sequence[Vote]) -> _Question | None:
        """Each 20th question is the oldest that a voter has answered and was not asked again."""
        if (len(own) + 1) % _REPEAT_EVERY:
            return None
        repeats = {(vote.ballot, *vote.pair) for vote in own if vote.again}
        for vote in own[:-_REST]:
            known = self.box.find(vote.ballot)
            if known and (vote.ballot, *vote.pair) not in repeats:
                return _Question(ballot=known[0], pair=vote.pair, again=True)
        return None

    def _choose(self, voter: str, questions: Sequence[_Question]) -> _Question:
        """What the voter looks at already, else what nobody else looks at."""
        now = time.monotonic()
        mine, _ = self._looks.get(voter, ((), 0.0))
        others = {place for name, (place, since) in self._looks.items() if name != voter and now - since < _LOOK}
        question = min(questions, key=lambda each: (each.place != mine, each.place in others))
        if question.place != mine:
            self._looks[voter] = question.place, now
        return question

    async def _vote(self, request: Request) -> Response:
        """Write a vote down, once."""
        content = await _body(request)
        known = self.box.find(_name(content, "ballot"))
        if known is None:
            raise HTTPException(404, "This question is not one of this run.")
        with self._writing():
            ballot, waits = self.box.find(content["ballot"]) or known
            vote = Vote(
                id=_name(content, "id"),
                voter=_name(content, "voter"),
                time=time.time(),
                ballot=ballot.key,
                question=ballot.question,
                prompt=ballot.prompt,
                how=ballot.how,
                samples=ballot.samples,
                answer=content.get("answer"),
                pair=content.get("pair") or (),
                again=content.get("again") is True,
            )
            if not is_answer(ballot, vote.answer, vote.pair):
                raise HTTPException(400, "This is no answer to the question.")
            if all(vote.id != other.id for other in self.box.votes()):
                self.box.add(vote)
        return JSONResponse({"late": not (waits or vote.again)})

    async def _undo(self, request: Request) -> Response:
        """Take a voter's last vote back, unless the run has used it."""
        voter = _name(await _body(request), "voter")
        if not self.box.folder.exists():
            raise HTTPException(409, "You have not voted yet.")
        with self._writing():
            own = [vote for vote in self.box.votes() if vote.voter == voter]
            if not own:
                raise HTTPException(409, "You have not voted yet.")
            last = own[-1]
            _, waits = self.box.find(last.ballot) or (None, False)
            if not (waits or last.again):
                raise HTTPException(409, "The run has already learned from your last vote.")
            self.box.take_back(last)
        self._looks[voter] = (last.ballot, *last.pair), time.monotonic()
        return JSONResponse({})

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Inside, nobody else writes; a full disk is answered in words."""
        try:
            with self.box.lock:
                yield
        except (RunError, OSError) as error:
            raise HTTPException(507, str(error)) from error


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


def _name(content: Any, key: str) -> str:
    """One of the names in a request."""
    name = content.get(key)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise HTTPException(400, f"`{key}` is missing; expected at most 64 letters, digits and hyphens.")
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
