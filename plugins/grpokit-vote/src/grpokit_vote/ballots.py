"""The files by which a run asks people, and they answer.

    votes.jsonl             a line for each vote, and for each one that was taken back
    votes/waiting/KEY.json  a ballot that the run waits for
    votes/asked/KEY.json    one that it waits for no longer
    votes/samples/DIGEST    the pictures and texts, by their content
    votes/scored.jsonl      how each group got its scores

A ballot is known by its samples, its prompt and its question, not by its run or step: a vote counts wherever they come
again. Equal samples of a group are one choice. The run and the pages write under one lock, and only ever append to or
replace a file, so that a kill loses nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock
from PIL import Image

from grpokit.files import parse_json, replacing, writing
from grpokit.images import to_rgb

VOTES = "votes.jsonl"
PICTURE, TEXT = ".png", ".txt"


@dataclass(frozen=True, kw_only=True)
class Ballot:
    """One group that people are asked about.

    Attributes:
        key: stands for the samples, the prompt and the question.
        step: the training step that waits for it.
        place: its group's number in the run.
        prompt: its text.
        sources: names of the prompt's own pictures, such as those of an edit.
        question: what people are asked, in the user's words.
        how: what an answer is: "best", "best-worst", "stars" or "pairs".
        samples: the names of the choices, in order.
        pairs: of "pairs", those that are asked.
        until: when the run goes on without an answer, in seconds since the epoch.
    """

    key: str
    step: int
    place: int
    prompt: str
    sources: Sequence[str]
    question: str
    how: str
    samples: Sequence[str]
    pairs: Sequence[Sequence[str]] = ()
    until: float


@dataclass(frozen=True, kw_only=True)
class Vote:
    """One answer of one person.

    Attributes:
        id: of the vote, so that one that is sent twice counts once.
        voter: stands for the person.
        time: when it came, in seconds since the epoch.
        ballot: the key of the ballot.
        question: as it was asked.
        prompt: the prompt's text.
        how: what the answer is.
        samples: all choices of the ballot.
        answer: for "best" a sample, for "best-worst" two of them, for "stars" sample -> 1 to 5, for "pairs" one of
            the pair; None for "no difference".
        pair: of "pairs", the two samples.
        again: whether it was asked a second time, to see whether the person agrees with themselves.
    """

    id: str
    voter: str
    time: float
    ballot: str
    question: str
    prompt: str
    how: str
    samples: Sequence[str]
    answer: Any
    pair: Sequence[str] = ()
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class Scored:
    """How a group of a step got its scores.

    Attributes:
        step: the training step.
        place: the group's number.
        ballot: the key of its ballot.
        question: what people were asked.
        how: what an answer is.
        by: "votes", "model", "nobody" (it waited in vain) or "sameness" (all samples are equal).
        values: sample -> score; empty where there is none.
        expected: sample -> the model's score before the votes came; empty without a model.
        drawn: whether it was asked whatever the model knows, so that it measures the model.
    """

    step: int
    place: int
    ballot: str
    question: str
    how: str
    by: str
    values: Mapping[str, float] = field(default_factory=dict)
    expected: Mapping[str, float] = field(default_factory=dict)
    drawn: bool = False


_Row = TypeVar("_Row", Ballot, Vote, Scored)


def key_of(question: str, how: str, prompt: str, samples: Sequence[str], sources: Sequence[str]) -> str:
    """What a ballot is known by; the order of the samples does not count."""
    content = json.dumps([question, how, prompt, sorted(set(samples)), list(sources)])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


class BallotBox:
    """The votes of a run.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.run, self.file = folder, folder / VOTES
        self.folder, self.samples = folder / "votes", samples_of(folder)
        self._waiting, self._asked = self.folder / "waiting", self.folder / "asked"
        self._scored = self.folder / "scored.jsonl"
        self.lock = FileLock(self.folder / ".lock")
        self._read: dict[Path, tuple[tuple[int, int], list[Any]]] = {}

    def prepare(self) -> None:
        """Make the folders; a run does so before it asks."""
        with writing(self.folder):
            for place in (self._waiting, self._asked, self.samples):
                place.mkdir(parents=True, exist_ok=True)

    def keep(self, output: Any, *, what: str) -> str:
        """Keep a picture or a text, and return its name."""
        if isinstance(output, str):
            content, ending = output.encode(errors="surrogatepass"), TEXT
        else:
            content, ending = _png(to_rgb(output, what=what)), PICTURE
        name = hashlib.sha256(content).hexdigest()[:32] + ending
        place = self.samples / name
        if not place.exists():
            with writing(place), replacing(place, shared=True) as temporary:
                temporary.write_bytes(content)
        return name

    def ask(self, ballot: Ballot) -> None:
        """Put a ballot before the people."""
        place = self._waiting / f"{ballot.key}.json"
        with writing(place), replacing(place) as temporary:
            temporary.write_text(json.dumps(asdict(ballot)), encoding="utf-8")

    def waiting(self) -> list[Ballot]:
        """The ballots that wait for people, the oldest first."""
        ballots: list[Ballot] = []
        for place in self._waiting.glob("*.json"):
            ballots += _rows(place, Ballot)
        return sorted(ballots, key=lambda ballot: (ballot.step, ballot.place))

    def find(self, key: str) -> tuple[Ballot, bool] | None:
        """A ballot by its key, and whether a run waits for it."""
        if not key.isalnum():
            return None
        for folder in (self._waiting, self._asked):
            for ballot in _rows(folder / f"{key}.json", Ballot):
                return ballot, folder == self._waiting
        return None

    def withdraw(self, key: str) -> None:
        """The run waits for this ballot no longer."""
        place = self._waiting / f"{key}.json"
        if place.exists():
            with writing(place):
                os.replace(place, self._asked / place.name)

    def votes(self) -> list[Vote]:
        """All votes that nobody took back, in the order in which they came."""
        return votes_of(self._lines(self.file))

    def add(self, vote: Vote) -> None:
        """Write down a vote; the lock must be held."""
        self._append(self.file, asdict(vote))

    def take_back(self, vote: Vote) -> None:
        """Note that a vote was taken back; the lock must be held."""
        self._append(self.file, {"undo": vote.id})

    def score(self, scored: Scored) -> None:
        """Note how a group got its scores; the lock must be held."""
        self._append(self._scored, asdict(scored))

    def scored(self, before: int | None = None) -> list[Scored]:
        """How the groups of all steps, or those before one, got their scores; of a step drawn again, the last time."""
        latest = {}
        for line in self._lines(self._scored):
            row = _row(line, Scored)
            if row and (before is None or row.step < before):
                latest[row.step, row.place, row.question] = row
        return [latest[place] for place in sorted(latest)]

    def _lines(self, place: Path) -> list[Any]:
        """The lines of a file, which is read again only where it has changed."""
        try:
            status = place.stat()
        except OSError:
            return []
        state = status.st_size, status.st_mtime_ns
        if place not in self._read or self._read[place][0] != state:
            self._read[place] = state, read_lines(place)
        return self._read[place][1]

    def _append(self, place: Path, row: Mapping[str, Any]) -> None:
        """Add a line, all of it or nothing."""
        with writing(place), place.open("a+b", buffering=0) as file:  # a buffer would write its rest when it is closed
            end = file.tell()
            file.seek(max(0, end - 1))
            is_cut = file.read() not in (b"", b"\n")
            line = b"\n" * is_cut + json.dumps(row).encode() + b"\n"
            try:
                while line:
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
            except OSError:
                os.truncate(place, end)
                raise


def samples_of(folder: Path) -> Path:
    """Where the samples of a run lie."""
    return folder / "votes" / "samples"


def by_ballot(votes: Sequence[Vote]) -> dict[str, list[Vote]]:
    """The votes of each ballot, by its key."""
    ballots: dict[str, list[Vote]] = {}
    for vote in votes:
        ballots.setdefault(vote.ballot, []).append(vote)
    return ballots


def votes_of(lines: Sequence[Any]) -> list[Vote]:
    """The votes in the lines of a file: each once, and none that was taken back."""
    votes: dict[str, Vote] = {}
    for line in lines:
        if isinstance(line, dict) and "undo" in line:
            votes.pop(str(line["undo"]), None)
            continue
        vote = _row(line, Vote)
        if vote:
            votes.setdefault(vote.id, vote)
    return list(votes.values())


def read_lines(place: Path) -> list[Any]:
    """What the lines of a JSONL file hold; one that a kill has cut off is left out."""
    content = []
    for line in place.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            content.append(parse_json(line))
        except ValueError:
            continue
    return content


def _rows(place: Path, kind: type[_Row]) -> Iterator[_Row]:
    """What a file with one row holds; nothing where it is not there."""
    try:
        row = _row(parse_json(place.read_bytes()), kind)
    except (OSError, ValueError):
        return
    if row:
        yield row


def _row(content: Any, kind: type[_Row]) -> _Row | None:
    """A line as what it stands for; None where it is something else."""
    names = {each.name for each in fields(kind)}
    try:
        return kind(**{name: value for name, value in content.items() if name in names})
    except (AttributeError, TypeError):
        return None


def _png(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, format="PNG")
    return out.getvalue()
