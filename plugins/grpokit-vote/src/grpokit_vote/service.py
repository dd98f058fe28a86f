"""The page on which people vote, served to this computer alone.

All that counts stands in the run's files. The service remembers only who looks at which question, so that two people
get different ones. It may be killed and started again at any time.
"""

from __future__ import annotations

import random
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import uvicorn
from pydantic import BaseModel, StringConstraints, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from grpokit.errors import RunError
from grpokit.report.watch import LOCAL_HEADERS, LOCAL_HOST
from grpokit.run_folder.lock import is_running
from grpokit_vote.answers import agreement, is_answer, open_asks
from grpokit_vote.ballots import Ballot, BallotBox, Vote, by_ballot

MOST_BODY = 64_000
"""Bytes of a request."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAMPLE = re.compile(r"[0-9a-f]{32}\.(png|txt)")
_REPEAT_EVERY = 20  # questions of a voter
_REST = 5  # questions before the same may come again
_LOOK = 60.0  # seconds that a question is left to the person who looks at it

_Name = Annotated[str, StringConstraints(pattern="^[A-Za-z0-9-]{1,64}$")]
_Place: TypeAlias = tuple[str, ...]  # a question: a ballot's key, and what is shown of it


class _Voter(BaseModel):
    voter: _Name


class _Sent(_Voter):
    """A vote as the page sends it."""

    id: _Name
    ballot: _Name
    samples: list[str]
    answer: Any


_Body = TypeVar("_Body", bound=_Voter)


class VoteService:
    """Serves the page of a run.

    Args:
        run: the run folder, which may not be there yet.
        port: the port; 0 takes a free one.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, run: Path, port: int = 0) -> None:
        self.box = BallotBox(run)
        self._looks: dict[str, tuple[_Place, float]] = {}  # voter -> what they look at, since when
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/"
        routes = [
            Route("/next", self._next),
            Route("/sample/{name}", self._sample),
            Route("/vote", self._vote, methods=["POST"]),
            Route("/undo", self._undo, methods=["POST"]),
            Mount("/", StaticFiles(directory=Path(__file__).with_name("page"), html=True)),
        ]
        admission = Middleware(BaseHTTPMiddleware, dispatch=_admit)
        app = Starlette(routes=routes, middleware=[admission], exception_handlers={RunError: _full, OSError: _full})
        headers = [*LOCAL_HEADERS.items(), ("Content-Security-Policy", _POLICY)]
        config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, log_level="error", headers=headers)
        config.timeout_graceful_shutdown = 1
        self.server = uvicorn.Server(config)

    def run(self) -> None:
        """Answer until Ctrl-C, SIGTERM or `server.should_exit`."""
        self.server.run(sockets=[self._socket])

    async def _sample(self, request: Request) -> Response:
        place = self.box.samples / request.path_params["name"]
        if not _SAMPLE.fullmatch(place.name) or not place.is_file():
            raise HTTPException(404, "There is no such sample.")
        return FileResponse(place)

    async def _next(self, request: Request) -> Response:
        """What a voter is asked now; nothing of it tells a step, a score or the order of the rows."""
        voter = _read(_Voter, request.query_params).voter
        votes = self.box.votes()
        own = [vote for vote in votes if vote.voter == voter]
        agreed = agreement(own)
        questions = self._questions(votes)
        works = is_running(self.box.run)
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
            for asked in open_asks(ballot, answers.get(ballot.key, [])):
                questions[ballot.key, *asked] = ballot
        return questions

    def _asked(self, voter: str, own: Sequence[Vote], questions: Mapping[_Place, Ballot]) -> dict[str, Any]:
        """The question for a voter."""
        repeat = _repeat(own)
        place = _place(repeat) if repeat else self._choose(voter, questions)
        ballot = repeat.ballot if repeat else questions[place]
        samples = list(place[1:])
        random.Random(f"{voter} {place} {len(own)}").shuffle(samples)  # so that a restart changes nothing
        return {
            "state": "ask",
            "ballot": ballot.key,
            "samples": samples,
            "left": None if repeat else max(0.0, ballot.until - time.time()),
            **ballot.model_dump(include={"prompt", "sources", "question", "how"}),
        }

    def _choose(self, voter: str, questions: Mapping[_Place, Ballot]) -> _Place:
        """What the voter looks at already, else what nobody else looks at."""
        now = time.monotonic()
        mine, _ = self._looks.get(voter, ((), 0.0))
        others = set()
        for name, (place, since) in self._looks.items():
            if name != voter and now - since < _LOOK:
                others.add(place)
        place = min(questions, key=lambda place: (place != mine, place in others))
        if place != mine:
            self._looks[voter] = place, now
        return place

    async def _vote(self, request: Request) -> Response:
        """Write a vote down, once."""
        sent = _read(_Sent, await _body(request))
        asked = tuple(sorted(sent.samples))
        with self._locked():
            ballot, waits = self.box.find(sent.ballot) or (None, False)
            if ballot is None:
                raise HTTPException(404, "The question is not one of this run.")
            if not is_answer(ballot, asked, sent.answer):
                raise HTTPException(400, "This is no answer to the question.")
            votes = self.box.votes()
            others = [vote for vote in votes if vote.id != sent.id]
            own = [_place(vote) for vote in others if vote.voter == sent.voter]
            is_repeat = (ballot.key, *asked) in own
            if len(others) == len(votes):
                self.box.vote(ballot, sent.answer, voter=sent.voter, asked=asked, id=sent.id)
        return JSONResponse({"late": not (waits or is_repeat)})

    async def _undo(self, request: Request) -> Response:
        """Take a voter's last vote back, unless the run has used it."""
        voter = _read(_Voter, await _body(request)).voter
        with self._locked():
            own = [vote for vote in self.box.votes() if vote.voter == voter]
            if not own:
                raise HTTPException(409, "You have not voted yet.")
            last = own[-1]
            is_repeat = any(_place(vote) == _place(last) for vote in own[:-1])
            waiting = [ballot.key for ballot in self.box.waiting()]
            if not is_repeat and last.ballot.key not in waiting:
                raise HTTPException(409, "The run has already learned from your last vote.")
            self.box.take_back(last)
        self._looks[voter] = _place(last), time.monotonic()
        return JSONResponse({})

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock makes its folder, and a run begins in none that has files."""
        if not self.box.folder.exists():
            raise HTTPException(404, "The run has not asked anything yet.")
        with self.box.lock:
            yield


def _place(vote: Vote) -> _Place:
    return vote.ballot.key, *vote.asked


def _repeat(own: Sequence[Vote]) -> Vote | None:
    """Each 20th question is the oldest that a voter has answered once."""
    if (len(own) + 1) % _REPEAT_EVERY:
        return None
    places = [_place(vote) for vote in own]
    return next((vote for vote in own[:-_REST] if places.count(_place(vote)) == 1), None)


async def _admit(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """Refuse other pages of the web, which may let their names point here."""
    host = request.headers.get("Host", "")
    origin = request.headers.get("Origin", f"http://{host}")
    kind, _, _ = request.headers.get("Content-Type", "").partition(";")
    if not LOCAL_HOST.fullmatch(host) or origin != f"http://{host}":
        return PlainTextResponse("This address is not the one that grpokit vote listens on.", 403)
    if request.method == "POST" and kind.strip() != "application/json":
        return PlainTextResponse("Expected `Content-Type: application/json`.", 415)
    if request.method == "POST" and int(request.headers.get("Content-Length", MOST_BODY + 1)) > MOST_BODY:
        return PlainTextResponse(f"A request has at most {MOST_BODY:,} bytes, and says its Content-Length.", 413)
    return await answer(request)


async def _full(request: Request, error: Exception) -> Response:
    """A full disk, or a folder without permission, in words."""
    return PlainTextResponse(str(error), 507)


async def _body(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect:
        raise HTTPException(400, "The body is shorter than its Content-Length.") from None


def _read(kind: type[_Body], content: bytes | Mapping[str, str]) -> _Body:
    """What was sent, as JSON or in the address."""
    try:
        return kind.model_validate_json(content) if isinstance(content, bytes) else kind.model_validate({**content})
    except ValidationError as error:
        raise HTTPException(400, f"The request is not one of this page: {error.errors()[0]['msg']}.") from None
