"""kill -9 of the run and of the page: nothing is asked twice, and the run is the same one to the bit."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from booths import Client
from voter import SimulatedVoter, blueness

from grpokit_vote import reward
from grpokit_vote.ballots import BallotBox
from whole_runs import assert_same, start, train_config

GROUPS, STEPS = 4, 5
CONFIG = f"""
policy: {{use: toy-glyph}}
data: {{use: "grpokit_toy.data:glyph_prompts"}}
rewards: [{{use: human-vote, how: best-worst, model: pixels, ask: 0.5}}]
trainer: {{steps: {STEPS}, prompts_per_step: {GROUPS}, group_size: 4, learning_rate: 1e-3}}
eval: {{every: 0}}
run: {{save_every: 2, threads: 1}}
"""


class Person(threading.Thread):
    """Chooses the bluest picture on a page, and tries again while the page is not there."""

    def __init__(self, run: Path) -> None:
        super().__init__(daemon=True)
        self.samples, self.client, self.over = run / "votes" / "samples", Client(0), threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            with suppress(OSError, http.client.HTTPException):
                self.vote()

    def vote(self) -> None:
        asked = self.client.next("person")
        if asked["state"] == "ask":
            ordered = sorted(asked["samples"], key=lambda name: -blueness(self.samples / name))
            self.client.vote(asked, [ordered[0], ordered[-1]], id=f"vote-{asked['given']}", voter="person")


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    votes = Person(tmp_path / "killed")
    votes.start()
    yield votes
    votes.over.set()
    votes.join()


@contextmanager
def until_killed(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Ends a process by SIGKILL."""
    try:
        yield
    finally:
        process.kill()
        process.communicate()


@contextmanager
def page(run: Path, port: int = 0) -> Iterator[int]:
    """The page in a process of its own, which is killed at the end; gives its port."""
    command = [sys.executable, "-m", "grpokit", "vote", str(run), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with until_killed(process):
        assert process.stdout
        words = next(line for line in process.stdout if "http://" in line)
        yield int(words.split("127.0.0.1:")[1].split("/")[0])


def lines(run: Path) -> list[str]:
    file = run / "votes.jsonl"
    return file.read_text().splitlines() if file.exists() else []


def ballots(run: Path) -> list[str]:
    """What was answered, each time."""
    return [vote.ballot.key for vote in BallotBox(run).votes()]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_what_was_killed_asks_nothing_twice_and_ends_the_same(
    tmp_path: Path, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward, "GRACE", 0.0)  # of the runs in this process
    (tmp_path / "config.yaml").write_text(CONFIG)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    voter = SimulatedVoter(whole, blueness)
    voter.start()
    train_config(str(tmp_path / "config.yaml"), whole)
    voter.over.set()

    with page(killed) as port:
        person.client.port = port
        with until_killed(start(killed)):
            wait_for(lambda: len(lines(killed)) >= 2)  # in step 1, before any checkpoint
        assert not (killed / "checkpoints").exists()
        with until_killed(start(killed, "--resume")):
            wait_for(lambda: len(lines(killed)) >= 2 * GROUPS + 1)  # in step 3
    assert [place.name for place in (killed / "checkpoints").glob("step_*")] == ["step_000002"]
    with page(killed, port):
        train_config(str(tmp_path / "config.yaml"), killed, resume=True)

    assert len(lines(killed)) == len(lines(whole))
    assert sorted(ballots(killed)) == sorted(ballots(whole))
    assert_same(whole, killed)
