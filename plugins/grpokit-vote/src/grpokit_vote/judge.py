"""The model of the voter in a run: what it knows, how often it was right, and which groups need no people.

It is fitted anew for each step, from the votes by which groups of earlier steps got their scores and from those of
other runs. So a resumed run, and each process, has the same one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from grpokit import UsageError
from grpokit_vote.answers import right_share
from grpokit_vote.ballots import TEXT, Ballot, Scored
from grpokit_vote.bradley_terry import Array
from grpokit_vote.features import Kind, features
from grpokit_vote.taste import Taste

RECENT = 20
"""The groups by which a model is measured."""

_FEWEST = 10  # of them, before it may answer for people


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A group that people have ordered.

    Attributes:
        values: sample -> score.
        folder: where the samples lie.
    """

    values: Mapping[str, float]
    folder: Path


class Judge:
    """A model of the voter.

    Args:
        kind: what it looks at.
        options: of the network that gives the features.
        trust: how often it must order two samples as people do, to answer for them.

    Attributes:
        taste: what it has learned; None before any votes.
        groups: how many groups it has learned from.
        measured: of the recent groups that people were asked about anyway, the share of pairs that it got right.
    """

    def __init__(self, kind: Kind, options: Mapping[str, Any], *, trust: float) -> None:
        self.kind, self.trust = kind, trust
        self.taste: Taste | None = None
        self.groups = 0
        self.measured: list[float] = []
        self._learned: Mapping[str, Learned] = {}
        self._features = features(kind, **options)
        self._vectors: dict[str, Array] = {}  # sample -> its features

    def learn(self, groups: Mapping[str, Learned], scored: Sequence[Scored]) -> None:
        """Learn from all votes of earlier steps.

        Args:
            groups: by their ballots.
            scored: how the groups of earlier steps got their scores.
        """
        self.measured = [share for row in scored if (share := right_share(row)) is not None][-RECENT:]
        if groups == self._learned:
            return
        self._learned = dict(groups)
        ordered = [group for group in groups.values() if len(set(group.values.values())) > 1]
        if ordered:
            for group in ordered:
                self._look_at([*group.values], group.folder)
            self.taste = Taste.fit([group.values for group in ordered], self._vectors, kind=self.kind)
            self.groups = len(ordered)

    @property
    def is_trusted(self) -> bool:
        """Whether it may answer for people."""
        return len(self.measured) >= _FEWEST and sum(self.measured) / len(self.measured) >= self.trust

    def expected(self, samples: Sequence[str], folder: Path) -> dict[str, float]:
        """The share of the others that each sample of a group should win against; empty before any votes."""
        if self.taste is None:
            return {}
        rates = self.taste.win_rates(self._look_at(samples, folder))
        return dict(zip(samples, rates.tolist(), strict=True))

    def chosen(self, ballots: Sequence[Ballot], ask: float) -> tuple[set[str], set[str]]:
        """The keys of the ballots that people should see, and of those among them that measure the model.

        One is drawn at random and measures it; the others are those that it doubts most.

        Args:
            ballots: of a step, after `expected` for each.
            ask: the share of them.
        """
        keys = {ballot.key for ballot in ballots}
        if not ballots or not self.is_trusted or self.taste is None:
            return keys, keys
        step = ballots[0].step
        count = math.floor(ask * len(ballots) * step) - math.floor(ask * len(ballots) * (step - 1))
        if not count:
            return set(), set()
        drawn = random.Random(f"{step} {ballots[0].key}").choice(sorted(keys))
        doubts = {ballot.key: self.taste.doubt(self._table(ballot.samples)) for ballot in ballots}
        most_doubtful = sorted(keys - {drawn}, key=lambda key: (-doubts[key], key))
        return {drawn, *most_doubtful[: count - 1]}, {drawn}

    def state_dict(self) -> dict[str, Any]:
        """What it has learned: the taste, and from how many groups."""
        taste = self.taste.state_dict() if self.taste else {}
        return {"groups": self.groups} | taste

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a result of `state_dict`; what it was measured by stands in the run's folder."""
        self.groups = state["groups"]
        self.taste = Taste.of_state(state) if "weights" in state else None

    def _look_at(self, samples: Sequence[str], folder: Path) -> Array:
        """[n, F] the features of samples in a folder."""
        for name in samples:
            if name.endswith(TEXT):
                raise UsageError("human-vote: a model of the voter looks at pictures, and these samples are texts.")
            if name not in self._vectors:
                with Image.open(folder / name) as picture:
                    self._vectors[name] = self._features([picture.convert("RGB")])[0]
        return self._table(samples)

    def _table(self, samples: Sequence[str]) -> Array:
        return np.stack([self._vectors[name] for name in samples])
