"""Runs rewards: from samples to the matrix [B, R] that the advantage functions take.

A reward is any callable `Sequence[Sample] -> Sequence[float]`. One call gets whole groups. NaN means "cannot score
this sample" and is counted; infinity, a wrong length or a wrong type stop the run and name the reward and the row. An
exception stops it too, unless the term says `on_error="skip"`: then the groups that raise it alone count as unscored,
up to a share of the rows. A reward gets its own samples (`isolation`), and one with `submit` and `close` works at
the same time as the others (`submission`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpokit.reward_totals import totals
from grpokit.rewards.failures import Column, collect, refuse_losses, score_here, submit
from grpokit.rewards.submission import Pending, Submits
from grpokit.rewards.terms import RewardTerm
from grpokit.types import Sample


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The scores of all rewards for B samples.

    Attributes:
        matrix: [B, R] fp64, NaN where a reward could not score.
        weights: [R] fp64; 0 for a monitor.
        groups: [B] int64 group ids.
        names: R names.
        seconds: R wall-clock seconds.
        lost: [B, R] bool, where an exception of the reward was skipped.
        asked: R, whether the reward was called; a monitor is not called in each step.
        notes: sentences on rewards that raised and were skipped.
        decision_rewards: B tensors [t], what the policy's environment gave for each decision, NaN where nothing was
            decided; empty if the policy does not tell.
        statistics: the names of those that describe and do not judge.
    """

    matrix: Tensor
    weights: Tensor
    groups: Tensor
    names: Sequence[str]
    seconds: Sequence[float]
    lost: Tensor
    asked: Sequence[bool]
    notes: Sequence[str] = ()
    decision_rewards: Sequence[Tensor] = ()
    statistics: Sequence[str] = ()

    @property
    def trained(self) -> Scores:
        """Without the monitors: what advantages are made of."""
        columns = self.weights.nonzero()[:, 0].tolist()
        return replace(
            self,
            matrix=self.matrix[:, columns],
            weights=self.weights[columns],
            names=[self.names[i] for i in columns],
            seconds=[self.seconds[i] for i in columns],
            lost=self.lost[:, columns],
            asked=[self.asked[i] for i in columns],
        )

    @property
    def monitors(self) -> list[str]:
        """The names of the rewards that judge and are not trained on."""
        measured = [self.names[place] for place in (self.weights == 0).nonzero()[:, 0]]
        return [name for name in measured if name not in self.statistics]

    def column(self, name: str) -> Tensor:
        """[B] the scores of a reward by its name."""
        return self.matrix[:, list(self.names).index(name)]

    def select(self, rows: Tensor) -> Scores:
        """The scores of some rows (indices, or [B] bool)."""
        places = torch.arange(len(self.groups))[rows].tolist()
        own = [self.decision_rewards[place] for place in places] if self.decision_rewards else ()
        return replace(
            self,
            matrix=self.matrix[rows],
            groups=self.groups[rows],
            lost=self.lost[rows],
            decision_rewards=own,
        )

    @property
    def failed(self) -> list[int]:
        """R counts of the rows that were lost to exceptions."""
        counts: list[int] = self.lost.sum(0).tolist()  # [B, R] -> [R]
        return counts

    @property
    def totals(self) -> Tensor:
        """[B] each row's weighted sum (see `grpokit.reward_totals.totals`)."""
        return totals(self.matrix, self.weights, self.groups)


class Scoring:
    """Rewards at work on some samples; those that score elsewhere begin at once.

    Each reward gets its own copies, so `samples` do not change. There the number of a training step in the run is
    `info["training_step"]`. A sample without output is unscored.

    Args:
        terms: the rewards.
        samples: B samples.
        step: the training step, from 1, in which some monitors may not be due; None calls all rewards.
        elsewhere: the steps of other phases before it.
    """

    def __init__(
        self, terms: Sequence[RewardTerm], samples: Sequence[Sample], *, step: int | None = None, elsewhere: int = 0
    ) -> None:
        self.terms = terms
        number = None if step is None else step + elsewhere
        self._groups = torch.tensor([sample.group for sample in samples], dtype=torch.int64)
        has_output = torch.tensor([sample.output is not None for sample in samples])
        self._rows = has_output.nonzero()[:, 0]
        self._samples: Sequence[Sample] = [_in_step(number, samples[row]) for row in self._rows]
        self.asked = [term.due(step) and len(self._samples) > 0 for term in terms]
        self._pending: dict[int, Pending] = {
            i: submit(term.reward, self._samples)
            for i, term in enumerate(terms)
            if self.asked[i] and isinstance(term.reward, Submits)
        }

    def result(self) -> Scores:
        """Call the rewards of the run's own process, and wait for the others. It is called once.

        How many rows failures may cost is a share of all rows, at which `join_scores` looks.

        Raises:
            RewardError: a reward raised (and its `on_error` is "stop"), returned infinity, a wrong length or type, or
                changed the order of its samples.
            UsageError: a reward cannot work with its parameters or with the targets, whatever its `on_error`.
        """
        terms, samples = self.terms, self._samples
        columns = [Column(values=[math.nan] * len(samples)) for _ in terms]
        try:
            for i, term in enumerate(terms):
                if self.asked[i] and i not in self._pending:
                    columns[i] = score_here(term, samples)
            for i, pending in self._pending.items():
                columns[i] = collect(terms[i], pending, samples)
        finally:
            self.cancel()
        shape = len(self._groups), len(terms)
        matrix = torch.full(shape, math.nan, dtype=torch.float64)
        lost = torch.zeros_like(matrix, dtype=torch.bool)
        for i, column in enumerate(columns):
            matrix[self._rows, i] = torch.tensor(column.values, dtype=torch.float64)
            lost[self._rows[list(column.lost)], i] = True
        return Scores(
            matrix=matrix,
            weights=torch.tensor([t.weight for t in terms], dtype=torch.float64),
            groups=self._groups,
            names=[t.name for t in terms],
            seconds=[c.seconds for c in columns],
            lost=lost,
            asked=self.asked,
            notes=[note for c in columns for note in c.notes],
            statistics=[t.name for t in terms if t.statistic],
        )

    def cancel(self) -> None:
        """Release the samples, and cancel what has not begun; nothing waits for the rest."""
        for pending in self._pending.values():
            pending.cancel()
        self._samples, self._pending = (), {}


def _in_step(step: int | None, sample: Sample) -> Sample:
    return sample if step is None else replace(sample, info={**sample.info, "training_step": step})


def score_samples(terms: Sequence[RewardTerm], samples: Sequence[Sample]) -> Scores:
    """Run the rewards on all samples: `Scoring`, its `result` and `join_scores` in one, with the errors of each."""
    return join_scores(terms, [Scoring(terms, samples).result()])


def join_scores(terms: Sequence[RewardTerm], parts: Sequence[Scores], beside: Scores | None = None) -> Scores:
    """The scores of rows that several processes have scored: the slowest one's seconds, and every note once.

    Args:
        terms: the rewards.
        parts: of each process, in the order of the rows.
        beside: the scores of the step's other rows, if it has more.

    Raises:
        RewardError: failures have cost more of the step's rows than a reward's `skip_limit` allows.
    """
    seconds = zip(*(part.seconds for part in parts), strict=True)
    asked = zip(*(part.asked for part in parts), strict=True)
    scores = Scores(
        matrix=torch.cat([part.matrix for part in parts]),
        weights=parts[0].weights,
        groups=torch.cat([part.groups for part in parts]),
        names=parts[0].names,
        seconds=list(map(max, seconds)),
        lost=torch.cat([part.lost for part in parts]),
        asked=list(map(any, asked)),
        notes=list(dict.fromkeys(note for part in parts for note in part.notes)),
        decision_rewards=[row for part in parts for row in part.decision_rewards],
        statistics=parts[0].statistics,
    )
    lost = scores.lost if beside is None else torch.cat([scores.lost, beside.lost])
    refuse_losses(terms, lost.sum(0).tolist(), len(lost), scores.notes)
    return scores
