"""A run's ballots and the page that serves them, for tests."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from grpokit_vote.answers import pairs_of
from grpokit_vote.ballots import Ballot, BallotBox, Scored, key_of
from grpokit_vote.service import VoteService

JSON = {"Content-Type": "application/json"}


def picture(seed: int, size: tuple[int, int] = (32, 32)) -> Image.Image:
    """A plain colour with a square on it."""
    draws = np.random.default_rng(seed)
    pixels = np.full((size[1], size[0], 3), draws.integers(0, 256, 3), dtype=np.uint8)
    pixels[size[1] // 4 : size[1] // 2, size[0] // 4 : size[0] // 2] = draws.integers(0, 256, 3)
    return Image.fromarray(pixels)


def ask(
    run: Path,
    outputs: Sequence[Any],
    *,
    place: int = 0,
    how: str = "best",
    prompt: str = "a square",
    sources: Sequence[Any] = (),
    seconds: float = 3600.0,
) -> Ballot:
    """Put a group before the people."""
    box = BallotBox(run)
    box.prepare()
    samples = tuple(sorted(box.keep(output, what="a test's output") for output in outputs))
    names = tuple(box.keep(output, what="a test's source") for output in sources)
    question = "Which one do you like best?"
    key = key_of(question, how, prompt, samples, names)
    ballot = Ballot(
        key=key,
        step=1,
        place=place,
        prompt=prompt,
        sources=names,
        question=question,
        how=how,
        samples=samples,
        asks=pairs_of(samples, len(samples), key=key) if how == "pairs" else (samples,),
        until=time.time() + seconds,
    )
    box.ask(ballot)
    return ballot


def ask_pictures(run: Path, *, groups: int, size: int = 4, how: str = "best") -> list[Ballot]:
    """Put several groups of pictures before the people."""
    return [
        ask(run, [picture(100 * place + i) for i in range(size)], place=place, how=how, prompt=f"square {place}")
        for place in range(groups)
    ]


def leave(run: Path, ballot: Ballot) -> None:
    """The run goes on without an answer."""
    box = BallotBox(run)
    box.score(Scored(ballot=ballot, by="nobody"))
    box.withdraw(ballot)


class Client:
    """Speaks to the page's service as a browser does."""

    def __init__(self, port: int) -> None:
        self.port = port

    def request(
        self, method: str, path: str, content: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        body = content if content is None or isinstance(content, bytes) else json.dumps(content)
        sent = (JSON if method == "POST" else {}) | (headers or {})
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request(method, path, body, sent)
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()

    def next(self, voter: str = "ann") -> dict[str, Any]:
        status, _, content = self.request("GET", f"/next?voter={voter}")
        assert status == 200, content
        asked: dict[str, Any] = json.loads(content)
        return asked

    def vote(self, asked: dict[str, Any], answer: Any, *, id: str, voter: str = "ann") -> tuple[int, bytes]:
        vote = {name: asked[name] for name in ("ballot", "samples")}
        status, _, content = self.request("POST", "/vote", vote | {"id": id, "voter": voter, "answer": answer})
        return status, content


@contextmanager
def serving(run: Path, port: int = 0) -> Iterator[Client]:
    """The real service, on a port of its own."""
    service = VoteService(run, port)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield Client(service.port)
    finally:
        service.server.should_exit = True
        thread.join()
