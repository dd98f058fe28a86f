"""How statistics changed, in units of their spread before training, and how far they explain the reward.

A change is that of the mean over held-out prompts, paired by prompt: both sides have the same prompts and seeds. Its
interval is Student's t over the prompts. The correlation is that of deviations from the mean of the group, since
advantages are made of nothing else; groups are those that training drew, or were drawn as in training.

It does without torch, which a report need not wait for.

What only a group has, such as how varied it is, changed as it did in the groups of the same prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grpokit.evaluation.intervals import half_width
from grpokit.evaluation.paired import ScoreTable, prompt_means

LEAST = 0.2
"""The smallest change that is named, in spreads: a fifth of a standard deviation."""
_MANY = 1.5  # times an interval that a named change exceeds, since the largest of about ten changes are named
_EXPLAINS = 0.2  # the smallest share of the reward that is named
_ITSELF = 0.99  # a share from which on a statistic is the reward by another name
_CHANCE = 4.0  # standard errors of a correlation, since the largest of many is named
_ROUNDING = 1e-9  # (0.1 + 0.2) - 0.3 is no spread
_ALIKE = 0.95  # the correlation of two statistics that say the same

Words = tuple[str, str]
"""The words for a lower and a higher score of a statistic."""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A statistic before and after training.

    Attributes:
        name: the statistic's.
        words: for a fall and a rise.
        before: its mean on held-out prompts, None without a score.
        after: the same after training.
        change: of the mean, in standard deviations over the samples before; None where these are all equal.
        width: half of the 95 % confidence interval of the change.
        correlation: with the reward, within groups; None where one of them does not vary.
        beyond_chance: whether the correlation is.
        trained: whether the statistic is itself a part of the reward.
    """

    name: str
    words: Words
    before: float | None
    after: float | None
    change: float | None
    width: float | None
    correlation: float | None
    beyond_chance: bool
    trained: bool

    @property
    def size(self) -> float:
        """How large the change is, in spreads; 0 where it may be chance, also as one of many, or is not known."""
        if self.change is None or self.width is None or abs(self.change) <= _MANY * self.width:
            return 0.0
        return abs(self.change)

    @property
    def explained(self) -> float:
        """The share of the reward within a group that it explains; 0 where that may be chance or says nothing new."""
        if self.correlation is None or self.trained or not self.beyond_chance:
            return 0.0
        share = self.correlation**2
        return share if share < _ITSELF else 0.0


@dataclass(frozen=True, kw_only=True)
class Material:
    """Scores of a run's samples.

    Attributes:
        before: of held-out samples, a column for each statistic.
        after: the same after training.
        groups: the same of whole groups, with a column "reward"; None where there are none.
        paired_groups: of groups before and after, of the same prompts; None where there are none.
        statistics: name -> words.
        labels: what the page calls both evaluations.
    """

    before: ScoreTable
    after: ScoreTable
    groups: ScoreTable | None
    paired_groups: tuple[ScoreTable, ScoreTable] | None
    statistics: Mapping[str, Words]
    labels: tuple[str, str]


def shifts(material: Material, trained: Mapping[str, float]) -> list[Shift]:
    """What changed from one evaluation to another, the largest changes first.

    Args:
        material: the scores.
        trained: the weights of the rewards by their names.
    """
    every = []
    for name, words in material.statistics.items():
        sides = (material.before, material.after)
        if material.paired_groups and not prompt_means(material.before, name):
            sides = material.paired_groups
        mean_before, mean_after, change, width = _change(*sides, name)
        r, beyond_chance = _correlation(material.groups, name)
        every.append(
            Shift(
                name=name,
                words=words,
                before=mean_before,
                after=mean_after,
                change=change,
                width=width,
                correlation=r,
                beyond_chance=beyond_chance,
                trained=bool(trained.get(name)),
            )
        )
    return sorted(every, key=lambda shift: (shift.size, abs(shift.change or 0)), reverse=True)


def named(every: list[Shift], before: ScoreTable, most: int = 4) -> list[Shift]:
    """The changes that a sentence names: large and beyond chance, without those that say the same as a larger one.

    Args:
        every: all changes, the largest first.
        before: the scores before training, which show what says the same.
        most: how many are named.
    """
    chosen: list[Shift] = []
    for shift in every:
        said = any(_alike(before, shift.name, other.name) for other in chosen)
        if shift.size >= LEAST and not said:
            chosen.append(shift)
    return chosen[:most]


def explanation(every: list[Shift]) -> Shift | None:
    """The statistic that explains most of the reward, if that is enough to be named."""
    best = max(every, key=lambda shift: shift.explained, default=None)
    return best if best is not None and best.explained >= _EXPLAINS else None


def _change(
    before: ScoreTable, after: ScoreTable, name: str
) -> tuple[float | None, float | None, float | None, float | None]:
    """The means before and after over the prompts of both, the change and half of its interval in spreads."""
    old = prompt_means(before, name)
    new = prompt_means(after, name)
    shared = [prompt for prompt in old if prompt in new]
    if not shared:
        return None, None, None, None
    first = math.fsum(old[prompt] for prompt in shared) / len(shared)
    last = math.fsum(new[prompt] for prompt in shared) / len(shared)
    spread = _spread(before, name)
    if spread is None:
        return first, last, None, None
    differences = [(new[prompt] - old[prompt]) / spread for prompt in shared]
    width = half_width(differences, shared)
    return first, last, math.fsum(differences) / len(shared), None if math.isnan(width) else width


def _spread(table: ScoreTable, name: str) -> float | None:
    """The standard deviation over all samples; None where they are equal, to rounding."""
    scores = _column(table, name)
    scores = scores[~np.isnan(scores)]
    if len(scores) < 2:
        return None
    spread = float(scores.std(ddof=1))
    return spread if spread > _ROUNDING * np.abs(scores).max() else None


def _column(table: ScoreTable, name: str) -> np.ndarray:
    """[B], NaN without a score."""
    scores = table.scores.get(name) or [None] * len(table.prompt)
    return np.array([math.nan if score is None else score for score in scores])


def _correlation(groups: ScoreTable | None, name: str) -> tuple[float | None, bool]:
    """A statistic's correlation with the reward within groups, and whether it is beyond chance."""
    if groups is None:
        return None, False
    members = np.array(groups.prompt)
    r, freedom = _within(_column(groups, name), _column(groups, "reward"), members)
    if r is None:
        return None, False
    return r, freedom > 0 and r * r * freedom > _CHANCE**2 * (1 - r * r)


def _within(x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> tuple[float | None, int]:
    """Pearson's correlation of the deviations [B] from their group's mean, and its degrees of freedom.

    None where one of them does not vary within groups.
    """
    both = ~(np.isnan(x) | np.isnan(y))
    if not both.any():
        return None, 0
    _, members, sizes = np.unique(groups[both], return_inverse=True, return_counts=True)
    deviations = []
    for scores in (x[both], y[both]):
        means = np.bincount(members, scores) / sizes
        deviation = scores - means[members]
        if np.linalg.norm(deviation) <= _ROUNDING * np.abs(scores).max():
            return None, 0
        deviations.append(deviation / np.linalg.norm(deviation))
    return float(deviations[0] @ deviations[1]), len(members) - len(sizes) - 1


def _alike(table: ScoreTable, one: str, other: str) -> bool:
    """Whether two statistics rank the samples in the same way, or in the opposite one."""
    x = _column(table, one)
    r, _ = _within(x, _column(table, other), np.zeros(len(x)))
    return r is not None and abs(r) > _ALIKE
