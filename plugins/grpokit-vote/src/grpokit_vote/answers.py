"""What people answer, and how it becomes numbers.

    best        the best sample has 1, the others 0
    best-worst  the best has 1, the worst 0, the others 0.5
    stars       1 to 5 stars are 0 to 1
    pairs       strengths by which the winners of pairs are likely (Bradley and Terry, 1952, Biometrika 39)

"No difference" gives all the mean that a group usually has, and so teaches nothing. The first answer to a question
counts; a second one of the same person says how far they agree with themselves.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, TypeAlias

import numpy as np

from grpokit_likeness.logistic import fit
from grpokit_vote.ballots import Ballot, Scored, Vote

Asked: TypeAlias = tuple[str, ...]


def is_answer(ballot: Ballot, asked: Asked, answer: Any) -> bool:
    """Whether this may be an answer to one of a ballot's `asks`."""
    if asked not in ballot.asks:
        return False
    if answer is None:
        return True
    if ballot.how == "best-worst":
        is_two = isinstance(answer, list) and len(answer) == 2 and answer[0] != answer[1]
        return is_two and all(sample in asked for sample in answer)
    if ballot.how == "stars":
        is_whole = isinstance(answer, dict) and answer.keys() == {*asked}
        return is_whole and all(type(stars) is int and 1 <= stars <= 5 for stars in answer.values())
    return answer in asked


def pairs_of(samples: Sequence[str], count: int, *, key: str) -> tuple[Asked, ...]:
    """Which pairs of a group are asked: a ring through all samples, then others, in an order that the key decides.

    Args:
        samples: the n choices of a ballot.
        count: of pairs; n - 1 connect all samples, and there are n (n - 1) / 2.
        key: of the ballot.
    """
    draws = random.Random(key)
    ring = list(samples)
    draws.shuffle(ring)
    others = list(combinations(samples, 2))
    draws.shuffle(others)
    neighbours = pairwise([*ring, ring[0]])
    pairs = [tuple(sorted(pair)) for pair in [*neighbours, *others]]
    return tuple(dict.fromkeys(pairs))[:count]


def open_asks(ballot: Ballot, votes: Sequence[Vote]) -> list[Asked]:
    """What nobody has answered of a ballot, by all of its votes."""
    answers = _answers(ballot, votes)
    return [asked for asked in ballot.asks if asked not in answers]


def usual_mean(ballot: Ballot) -> float:
    """The mean of a group's scores, which is the same in each group of a size, but for stars."""
    if ballot.how == "best":
        return 1 / len(ballot.samples)
    return 0.0 if ballot.how == "pairs" else 0.5


def values_of(ballot: Ballot, votes: Sequence[Vote]) -> dict[str, float] | None:
    """The scores of a ballot's samples; None while an answer is missing.

    Args:
        ballot: what was asked.
        votes: all of this ballot, in the order in which they came.
    """
    answers = _answers(ballot, votes)
    if any(asked not in answers for asked in ballot.asks):
        return None
    if ballot.how == "pairs":
        return _strengths(ballot.samples, {asked: answers[asked] for asked in ballot.asks})
    answer = answers[ballot.samples]
    if answer is None:
        return dict.fromkeys(ballot.samples, usual_mean(ballot))
    if ballot.how == "best":
        return {sample: float(sample == answer) for sample in ballot.samples}
    if ballot.how == "best-worst":
        best, worst = answer
        return {sample: {best: 1.0, worst: 0.0}.get(sample, 0.5) for sample in ballot.samples}
    return {sample: (answer[sample] - 1) / 4 for sample in ballot.samples}


def _answers(ballot: Ballot, votes: Sequence[Vote]) -> dict[Asked, Any]:
    """The first answer to each question of a ballot."""
    answers: dict[Asked, Any] = {}
    for vote in votes:
        if is_answer(ballot, vote.asked, vote.answer):
            answers.setdefault(vote.asked, vote.answer)
    return answers


def _strengths(samples: Sequence[str], winners: Mapping[Asked, str | None]) -> dict[str, float]:
    """Each sample's strength; a tie is half a win of each."""
    differences = np.zeros((len(winners), len(samples)))
    shares = np.full(len(winners), 0.5)
    for row, (pair, winner) in enumerate(winners.items()):
        one, other = map(samples.index, pair)
        differences[row, one], differences[row, other] = 1.0, -1.0
        if winner is not None:
            shares[row] = float(winner == pair[0])
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
        chances = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
        return sum(chances[self.same :]) <= 0.05


def agreement(votes: Sequence[Vote]) -> Agreement:
    """How often people agreed with themselves, of the votes of one voter or of several."""
    first: dict[Any, Any] = {}
    same = 0
    chances = []
    for vote in votes:
        if not is_answer(vote.ballot, vote.asked, vote.answer):
            continue
        question = vote.voter, vote.ballot.key, vote.asked
        if question not in first:
            first[question] = _best_of(vote)
        else:
            same += first[question] == _best_of(vote)
            chances.append(1 / len(vote.asked))
    repeats = len(chances)
    return Agreement(same=same, repeats=repeats, chance=sum(chances) / max(1, repeats))


def _best_of(vote: Vote) -> Any:
    """The part of an answer that is compared: which sample is best."""
    if vote.answer and vote.ballot.how == "best-worst":
        return vote.answer[0]
    if vote.answer and vote.ballot.how == "stars":
        most = max(vote.answer.values())
        return sorted(sample for sample, stars in vote.answer.items() if stars == most)
    return vote.answer


def right_share(row: Scored) -> float | None:
    """Of the pairs of a group that people ordered, the share that the model ordered so before it learned from them.

    A tie of the model is half right. None where there is no such pair, or the group was asked for the model's doubts.
    """
    if row.by != "votes" or not row.drawn or not row.expected:
        return None
    rights = []
    for one, other in combinations(row.values, 2):
        preferred = np.sign(row.values[one] - row.values[other])
        expected = np.sign(row.expected[one] - row.expected[other])
        if preferred:
            rights.append((1 + preferred * expected) / 2)
    return float(np.mean(rights)) if rights else None
