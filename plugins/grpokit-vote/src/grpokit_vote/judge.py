"""The model of the voter in a run: what it knows, how often it was right, and which groups need no people.

It is fitted anew for each step, from the votes by which groups of earlier steps got their scores and from those of
other runs. So a resumed run, and each process, has the same one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from grpokit import UsageError
from grpokit_likeness.features import Kind, features
from grpokit_likeness.logistic import Array
from grpokit_vote.answers import right_share
from grpokit_vote.ballots import TEXT, Ballot, Scored
from grpokit_vote.taste import Taste

_RECENT = 20  # groups by which it is measured
_FEWEST = 10  # of them, before it may answer for people


class Judge:
    """A model of the voter.

    Args:
        kind: what it looks at.
        options: of the network that gives the features.
        trust: how often it must order two samples as people do, to answer for them.

    Attributes:
        taste: what it has learned; None before any votes.
        groups: from how many groups.
    """

    def __init__(self, kind: Kind, options: Mapping[str, Any], *, trust: float) -> None:
        self.kind, self.trust = kind, trust
        self.taste: Taste | None = None
        self.groups = 0
        self._right: list[float] = []  # of the recent groups that measure it, the share of pairs
        self._learned: Mapping[str, Mapping[str, float]] = {}
        self._features = features(kind, reward="human-vote", **options)
        self._vectors: dict[str, Array] = {}  # sample -> its features

    def learn(self, groups: Mapping[str, Mapping[str, float]], scored: Sequence[Scored]) -> None:
        """Learn from all votes of earlier steps.

        Args:
            groups: the key of a ballot -> sample -> its score; `look_at` has seen the samples.
            scored: how the groups of earlier steps got their scores.
        """
        latest_first = map(right_share, reversed(scored))
        recent = islice((share for share in latest_first if share is not None), _RECENT)
        self._right = [*recent][::-1]
        ordered = {}
        for key, values in groups.items():
            if len({*values.values()}) > 1:
                ordered[key] = values
        if ordered and ordered != self._learned:
            self.taste = Taste.fit([*ordered.values()], self._vectors, kind=self.kind)
            self._learned, self.groups = ordered, len(ordered)

    def look_at(self, samples: Sequence[str], folder: Path) -> None:
        """Get the features of samples in a folder; each is looked at once."""
        for name in samples:
            if name.endswith(TEXT):
                raise UsageError("human-vote: a model of the voter looks at pictures, and these samples are texts.")
            if name not in self._vectors:
                with Image.open(folder / name) as picture:
                    self._vectors[name] = self._features([picture.convert("RGB")])[0]

    def expected(self, samples: Sequence[str]) -> dict[str, float]:
        """The share of the others that each sample of a group should win against; empty before any votes."""
        if self.taste is None or len(samples) < 2:
            return {}
        rates = self.taste.win_rates(self._table(samples))
        return dict(zip(samples, rates.tolist(), strict=True))

    def chosen(self, ballots: Sequence[Ballot], ask: float) -> tuple[set[str], set[str]]:
        """The keys of the ballots that people should see, and of those among them that measure the model.

        One is drawn at random and measures it; the others are those that it doubts most.

        Args:
            ballots: of a step.
            ask: the share of them.
        """
        keys = {ballot.key for ballot in ballots}
        if ask == 1 or not ballots or self.taste is None or not self._is_trusted:
            return keys, keys
        step, size = ballots[0].step, ask * len(ballots)
        count = math.floor(size * step) - math.floor(size * (step - 1))  # so that the share is right over the steps
        if not count:
            return set(), set()
        drawn = random.Random(f"{step} {ballots[0].key}").choice(sorted(keys))
        doubts = {}
        for ballot in ballots:
            doubts[ballot.key] = self.taste.doubt(self._table(ballot.samples))
        most_doubtful = sorted(keys - {drawn}, key=lambda key: (-doubts[key], key))
        return {drawn, *most_doubtful[: count - 1]}, {drawn}

    @property
    def _is_trusted(self) -> bool:
        measured = len(self._right)
        return measured >= _FEWEST and sum(self._right) / measured >= self.trust

    def state_dict(self) -> dict[str, Any]:
        """What it has learned: the taste, and from how many groups."""
        taste = self.taste.state_dict() if self.taste else {}
        return {"groups": self.groups, **taste}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a result of `state_dict`; what it is measured by stands in the run's folder."""
        self.groups = state["groups"]
        self.taste = Taste.of_state(state) if "weights" in state else None

    def _table(self, samples: Sequence[str]) -> Array:
        return np.stack([self._vectors[name] for name in samples])
