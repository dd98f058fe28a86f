"""The files by which a run asks people, and they answer.

    votes.jsonl             a line for each vote, and for each one that was taken back
    votes/waiting/KEY.json  a ballot that the run waits for
    votes/scored.jsonl      how each group got its scores
    votes/samples/NAME      the pictures and texts, by their content

A ballot is known by its samples, its prompt and its question, not by its run or step: a vote counts wherever they come
again. Equal samples of a group are one choice. The run and the pages write under one lock, and only ever append to a
file or replace it whole, so that a kill loses nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from filelock import FileLock
from pydantic import BaseModel, ValidationError

from grpokit.files import replacing, write_text, writing
from grpokit.images import to_rgb

VOTES = "votes.jsonl"
PICTURE, TEXT = ".png", ".txt"

How: TypeAlias = Literal["best", "best-worst", "stars", "pairs"]
"""What an answer is; `grpokit_vote.answers` says how it becomes numbers."""

By: TypeAlias = Literal["votes", "model", "nobody", "sameness"]
"""How a group got its scores: "nobody" where it waited in vain, "sameness" where all samples are equal."""


class Ballot(BaseModel, frozen=True):
    """One group that people are asked about.

    Attributes:
        key: stands for the samples, the prompt and the question.
        step: the training step that waits for it.
        place: its group's number in the run.
        prompt: its text.
        sources: names of the prompt's own pictures, such as that of an edit.
        question: what people are asked, in the user's words.
        how: what an answer is.
        samples: the names of the choices, in order.
        asks: what is shown at a time: all samples, or each of some pairs.
        until: when the run goes on without an answer, in seconds since the epoch.
    """

    key: str
    step: int
    place: int
    prompt: str
    sources: tuple[str, ...] = ()
    question: str
    how: How
    samples: tuple[str, ...]
    asks: tuple[tuple[str, ...], ...]
    until: float


class Vote(BaseModel, frozen=True):
    """One answer of one person.

    Attributes:
        id: of the vote, so that one that is sent twice counts once.
        voter: stands for the person.
        time: when it came, in seconds since the epoch.
        ballot: what was asked.
        asked: which of the ballot's `asks` it answers.
        answer: for "best" and "pairs" a sample, for "best-worst" two of them, for "stars" sample -> 1 to 5; None for
            "no difference".
        undone: the vote of this id was taken back.
    """

    id: str
    voter: str
    time: float
    ballot: Ballot
    asked: tuple[str, ...]
    answer: Any
    undone: bool = False


class Scored(BaseModel, frozen=True):
    """How a group of a step got its scores.

    Attributes:
        ballot: of the group.
        by: whom or what they are from.
        values: sample -> score; empty where there is none.
        expected: sample -> the model's score before the votes came; empty without a model.
        drawn: whether it was asked whatever the model knows, so that it measures the model.
    """

    ballot: Ballot
    by: By
    values: Mapping[str, float] = {}
    expected: Mapping[str, float] = {}
    drawn: bool = False


_Row = TypeVar("_Row", bound=BaseModel)


class BallotBox:
    """The votes of a run.

    Args:
        folder: of the run.

    Attributes:
        samples: the folder of the pictures and texts that ballots name.
        lock: held where several reads and writes belong together.
    """

    def __init__(self, folder: Path) -> None:
        self.run, self.file = folder, folder / VOTES
        self.folder = folder / "votes"
        self.samples = self.folder / "samples"
        self.lock = FileLock(self.folder / ".lock")
        self._waiting, self._scored = self.folder / "waiting", self.folder / "scored.jsonl"
        self._read: dict[Path, tuple[tuple[int, int], list[Any]]] = {}

    def prepare(self) -> None:
        """Make the folders; a run does so before it asks."""
        with writing(self.folder):
            for place in (self._waiting, self.samples):
                place.mkdir(parents=True, exist_ok=True)

    def keep(self, output: Any, *, what: str) -> str:
        """Keep a picture or a text, and return its name."""
        if isinstance(output, str):
            content = output.encode(errors="surrogatepass")
            place = self.samples / (_digest(content) + TEXT)
        else:
            picture = to_rgb(output, what=what)
            place = self.samples / (_digest(f"{picture.size}".encode() + picture.tobytes()) + PICTURE)
        if not place.exists():
            with writing(place), replacing(place, shared=True) as temporary:
                if place.suffix == TEXT:
                    temporary.write_bytes(content)
                else:
                    picture.save(temporary, format="PNG", compress_level=1)  # takes less than half of the time
        return place.name

    def ask(self, ballot: Ballot) -> None:
        """Put a ballot before the people."""
        write_text(self._waiting / f"{ballot.key}.json", ballot.model_dump_json())

    def withdraw(self, ballot: Ballot) -> None:
        """The run waits for this ballot no longer."""
        with writing(self._waiting):
            (self._waiting / f"{ballot.key}.json").unlink(missing_ok=True)

    def waiting(self) -> list[Ballot]:
        """The ballots that wait for people, the oldest first."""
        ballots = []
        for place in self._waiting.glob("[!.]*.json"):
            with suppress(OSError, ValidationError):  # it has just been withdrawn
                ballots.append(Ballot.model_validate_json(place.read_bytes()))
        return sorted(ballots, key=lambda ballot: (ballot.step, ballot.place))

    def find(self, key: str) -> tuple[Ballot, bool] | None:
        """A ballot by its key, and whether the run waits for it."""
        waiting = [(ballot, True) for ballot in self.waiting()]
        scored = [(row.ballot, False) for row in self.scored()]
        answered = [(vote.ballot, False) for vote in self.votes()]
        return next((found for found in waiting + scored + answered if found[0].key == key), None)

    def votes(self) -> list[Vote]:
        """All votes that nobody took back, in the order in which they came."""
        votes: dict[str, Vote] = {}
        for vote in self._rows(self.file, Vote):
            if vote.undone:
                votes.pop(vote.id, None)
            else:
                votes.setdefault(vote.id, vote)
        return list(votes.values())

    def vote(
        self, ballot: Ballot, answer: Any, *, voter: str, asked: Sequence[str] | None = None, id: str = ""
    ) -> Vote:
        """Write down a vote, under the lock.

        Args:
            ballot: what was asked.
            answer: as in `Vote`.
            voter: stands for the person.
            asked: which of the ballot's `asks` it answers; by default the first.
            id: of the vote; by default a new one.
        """
        vote = Vote(
            id=id or uuid.uuid4().hex,
            voter=voter,
            time=time.time(),
            ballot=ballot,
            asked=tuple(asked or ballot.asks[0]),
            answer=answer,
        )
        self._append(self.file, vote)
        return vote

    def take_back(self, vote: Vote) -> None:
        """Note that a vote was taken back."""
        self._append(self.file, vote.model_copy(update={"undone": True}))

    def score(self, scored: Scored) -> None:
        """Note how a group got its scores."""
        self._append(self._scored, scored)

    def scored(self, before: int | None = None) -> list[Scored]:
        """How the groups of all steps, or those before one, got their scores; of one drawn again, the last time."""
        latest = {}
        for row in self._rows(self._scored, Scored):
            if before is None or row.ballot.step < before:
                latest[row.ballot.step, row.ballot.place, row.ballot.key] = row
        return [latest[place] for place in sorted(latest)]

    def _rows(self, place: Path, kind: type[_Row]) -> list[_Row]:
        """The lines of a file, which is read again where it has changed; one that a kill has cut off is left out."""
        try:
            status = place.stat()
        except OSError:
            return []
        state = status.st_size, status.st_mtime_ns
        if place not in self._read or self._read[place][0] != state:
            rows = []
            for line in place.read_bytes().splitlines():
                with suppress(ValidationError):
                    rows.append(kind.model_validate_json(line))
            self._read[place] = state, rows
        return self._read[place][1]

    def _append(self, place: Path, row: BaseModel) -> None:
        """Add a line, all of it or nothing."""
        with self.lock, writing(place), place.open("a+b", buffering=0) as file:  # a buffer is written on close too
            end = file.tell()
            file.seek(max(0, end - 1))
            is_cut = file.read() not in (b"", b"\n")
            line = b"\n" * is_cut + row.model_dump_json().encode() + b"\n"
            try:
                while line:
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
            except OSError:
                os.truncate(place, end)
                raise


def key_of(question: str, how: str, prompt: str, samples: Sequence[str], sources: Sequence[str]) -> str:
    """What a ballot is known by."""
    content = json.dumps([question, how, prompt, samples, sources])
    return _digest(content.encode())


def by_ballot(votes: Iterable[Vote]) -> dict[str, list[Vote]]:
    """The votes of each ballot, by its key."""
    ballots: dict[str, list[Vote]] = {}
    for vote in votes:
        ballots.setdefault(vote.ballot.key, []).append(vote)
    return ballots


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
