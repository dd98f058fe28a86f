"""What people answer, and how it becomes numbers.

    best        the best sample has 1, the others 0
    best-worst  the best has 1, the worst 0, the others 0.5
    stars       1 to 5 stars are 0 to 1
    pairs       strengths by which the winners of pairs are likely (Bradley and Terry, 1952, Biometrika 39)

"No difference" gives all the same number, and so teaches nothing. The first answer to a ballot, or to a pair, counts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, TypeAlias

import numpy as np

from grpokit_vote.ballots import Ballot, Scored, Vote
from grpokit_vote.bradley_terry import fit

How: TypeAlias = Literal["best", "best-worst", "stars", "pairs"]


def is_answer(ballot: Ballot, answer: Any, pair: Sequence[str] = ()) -> bool:
    """Whether this may be an answer to a ballot."""
    if ballot.how == "pairs":
        return tuple(pair) in _asked(ballot) and (answer is None or answer in pair)
    if pair:
        return False
    if answer is None:
        return True
    if ballot.how == "best":
        return answer in ballot.samples
    if ballot.how == "best-worst":
        is_two = isinstance(answer, list) and len(answer) == 2 and answer[0] != answer[1]
        return is_two and all(sample in ballot.samples for sample in answer)
    is_whole = isinstance(answer, dict) and answer.keys() == {*ballot.samples}
    return is_whole and all(type(stars) is int and 1 <= stars <= 5 for stars in answer.values())


def pairs_of(samples: Sequence[str], count: int, *, key: str) -> list[list[str]]:
    """Which pairs of a group are asked: a ring through all samples, then others, in an order that the key decides.

    Args:
        samples: the n choices of a ballot.
        count: of pairs; n - 1 connect all samples, and there are n (n - 1) / 2.
        key: of the ballot.
    """
    draws = random.Random(key)
    ring = list(samples)
    draws.shuffle(ring)
    neighbours = [sorted(pair) for pair in zip(ring, ring[1:] + ring[:1], strict=True)]
    others = [sorted((a, b)) for i, a in enumerate(ring) for b in ring[:i]]
    draws.shuffle(others)
    pairs: list[list[str]] = []
    for pair in neighbours + others:
        if pair not in pairs and len(pairs) < count:
            pairs.append(pair)
    return pairs


def values_of(ballot: Ballot, votes: Sequence[Vote]) -> dict[str, float] | None:
    """The scores of a ballot's samples; None while an answer is missing.

    Args:
        ballot: what was asked.
        votes: all of this ballot, in the order in which they came.
    """
    first = _first(ballot, votes)
    asked = _asked(ballot)
    if not first.keys() >= {*asked}:
        return None
    if ballot.how == "pairs":
        return _strengths(ballot.samples, {pair: first[pair] for pair in asked})
    answer = first[()]
    if answer is None:
        return dict.fromkeys(ballot.samples, 0.0)
    if ballot.how == "best":
        return {sample: float(sample == answer) for sample in ballot.samples}
    if ballot.how == "best-worst":
        best, worst = answer
        return {sample: {best: 1.0, worst: 0.0}.get(sample, 0.5) for sample in ballot.samples}
    return {sample: (answer[sample] - 1) / 4 for sample in ballot.samples}


def open_pairs(ballot: Ballot, votes: Sequence[Vote]) -> list[tuple[str, ...]]:
    """Which pairs of a ballot nobody has answered; of one that asks no pairs, () while it has no answer.

    Args:
        ballot: what was asked.
        votes: all of this ballot.
    """
    first = _first(ballot, votes)
    return [pair for pair in _asked(ballot) if pair not in first]


def _asked(ballot: Ballot) -> list[tuple[str, ...]]:
    """The pairs that a ballot asks; () stands for all of its samples."""
    return [tuple(pair) for pair in ballot.pairs] if ballot.how == "pairs" else [()]


def _first(ballot: Ballot, votes: Sequence[Vote]) -> dict[tuple[str, ...], Any]:
    """The first answer to each pair of a ballot."""
    first: dict[tuple[str, ...], Any] = {}
    for vote in votes:
        if not vote.again and is_answer(ballot, vote.answer, vote.pair):
            first.setdefault(tuple(vote.pair), vote.answer)
    return first


def _strengths(samples: Sequence[str], winners: Mapping[tuple[str, ...], str | None]) -> dict[str, float]:
    """Each sample's strength; a tie is half a win of each."""
    place = {sample: i for i, sample in enumerate(samples)}
    differences = np.zeros((len(winners), len(samples)))
    shares = np.full(len(winners), 0.5)
    for row, ((one, other), winner) in enumerate(winners.items()):
        differences[row, place[one]], differences[row, place[other]] = 1.0, -1.0
        if winner is not None:
            shares[row] = float(winner == one)
    strengths, _ = fit(differences, shares, precision=1.0)
    return dict(zip(samples, strengths.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How often people agreed with themselves when they were asked again.

    Attributes:
        same: how often the answer was the same.
        repeats: how often they were asked again.
        chance: the share that answers at random would give.
    """

    same: int
    repeats: int
    chance: float

    @property
    def better(self) -> bool | None:
        """Whether this is more often than by chance, at 95 % (one-sided); None while the repeats are too few to tell.

        >>> [Agreement(same=same, repeats=7, chance=0.25).better for same in (3, 4, 5)]
        [False, False, True]
        >>> Agreement(same=2, repeats=2, chance=0.25).better is None
        True
        """
        n, p = self.repeats, self.chance
        if p**n > 0.05:  # even if all were the same
            return None
        as_often = sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(self.same, n + 1))
        return as_often <= 0.05


def agreement(votes: Sequence[Vote]) -> Agreement:
    """How often people agreed with themselves, of the votes of one voter or of several."""
    first: dict[tuple[Any, ...], Any] = {}
    same, repeats, chances = 0, 0, 0.0
    for vote in votes:
        asked = vote.voter, vote.ballot, *vote.pair
        if not vote.again:
            first.setdefault(asked, _best_of(vote))
        elif asked in first:
            repeats += 1
            same += first[asked] == _best_of(vote)
            chances += 1 / len(vote.pair or vote.samples)
    return Agreement(same=same, repeats=repeats, chance=chances / repeats if repeats else 0.0)


def _best_of(vote: Vote) -> Any:
    """The part of an answer that is compared: which sample is best."""
    if vote.how == "best-worst" and vote.answer:
        return vote.answer[0]
    if vote.how == "stars" and vote.answer:
        most = max(vote.answer.values())
        return sorted(sample for sample, stars in vote.answer.items() if stars == most)
    return vote.answer


def right_pairs(expected: Mapping[str, float], values: Mapping[str, float]) -> tuple[float, int]:
    """How many pairs a model orders as the votes do, and of how many; of a tie of the model, half.

    Args:
        expected: sample -> the model's number.
        values: sample -> that of the votes. Pairs of equal values do not count.

    >>> right_pairs({"a": 0.9, "b": 0.5, "c": 0.5}, {"a": 1.0, "b": 0.0, "c": 0.5})
    (2.5, 3)
    """
    right, count = 0.0, 0
    for one, other in combinations(values, 2):
        agreement = (expected[one] - expected[other]) * (values[one] - values[other])
        if values[one] != values[other]:
            count += 1
            right += 0.5 if agreement == 0 else float(agreement > 0)
    return right, count


def right_share(row: Scored) -> float | None:
    """Of the pairs of a group that people ordered, the share that the model had ordered so; None if it had no chance.

    Groups that were asked because the model was in doubt do not count.
    """
    if row.by != "votes" or not row.drawn or not row.expected:
        return None
    right, count = right_pairs(row.expected, row.values)
    return right / count if count else None
