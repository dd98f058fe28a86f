"""A person who votes by a rule of their own, through the files, as the page does for people."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from grpokit_vote.answers import open_asks
from grpokit_vote.ballots import Ballot, BallotBox


class SimulatedVoter(threading.Thread):
    """Answers each ballot of a run, one at a time.

    Args:
        folder: of the run.
        taste: of a picture's file; the higher the better.
        most: votes in all; later ballots get none.
    """

    def __init__(self, folder: Path, taste: Callable[[Path], float], most: int = 10**6) -> None:
        super().__init__(daemon=True)
        self.box, self.taste, self.most, self.given = BallotBox(folder), taste, most, 0
        self.over = threading.Event()

    def run(self) -> None:
        """Vote until it is over."""
        while not self.over.wait(0.02):
            for ballot in self.box.waiting():
                votes = [vote for vote in self.box.votes() if vote.ballot.key == ballot.key]
                for asked in open_asks(ballot, votes):
                    if self.given < self.most:
                        self.vote(ballot, asked)

    def vote(self, ballot: Ballot, asked: tuple[str, ...] = ()) -> None:
        """Answer a ballot, or a pair of it."""
        likes = {name: self.taste(self.box.samples / name) for name in asked or ballot.samples}
        ordered = sorted(likes, key=lambda name: -likes[name])
        stars = {name: 1 + round(4 * rank / (len(ordered) - 1)) for rank, name in enumerate(reversed(ordered))}
        answers: dict[str, Any] = {"best-worst": [ordered[0], ordered[-1]], "stars": stars}
        self.box.vote(ballot, answers.get(ballot.how, ordered[0]), voter="simulated", asked=asked)
        self.given += 1


def blueness(file: Path) -> float:
    """How dark and blue a picture is: its blue above its red and green."""
    red, green, blue = np.asarray(Image.open(file).convert("RGB"), dtype=float).mean((0, 1)) / 255
    return float(2 * blue - red - green - 0.5 * (red + green + blue) / 3)
