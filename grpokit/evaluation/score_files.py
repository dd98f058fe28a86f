"""Scores samples in files, without a policy or training; only one batch of pictures is in memory.

Each row is yielded as soon as its batch is scored. A file that cannot be read becomes a row with its problem, and the
others are scored. An error inside a reward stops everything, as in a run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grpokit import registry, reward_totals
from grpokit.errors import DataError, GrpokitError, UsageError, reworded
from grpokit.evaluation.intervals import Mean, mean_of_totals
from grpokit.evaluation.sample_files import Entry
from grpokit.registry.specs import RewardSpec
from grpokit.rewards.failures import refuse_losses
from grpokit.rewards.scoring import Scores, Scoring
from grpokit.rewards.terms import Rewards, RewardTerm, as_terms
from grpokit.types import Prompt, Sample


@dataclass(frozen=True, kw_only=True)
class Row:
    """The scores of one entry.

    Attributes:
        entry: the entry.
        scores: reward -> score; NaN where it could not score.
        weights: reward -> its weight.
        problem: why the files could not be read; empty if they were.
    """

    entry: Entry
    scores: Mapping[str, float]
    weights: Mapping[str, float]
    problem: str = ""

    def as_json(self, *, total: float | None = None) -> dict[str, Any]:
        """A line of `--out`; NaN becomes null.

        Args:
            total: the row's total, from `totals`; None leaves it out.
        """
        row: dict[str, Any] = {"prompt": self.entry.text}
        if self.entry.kind == "image":
            row["file"] = str(self.entry.output)
        else:
            row["output"] = self.entry.output
        row["group"] = self.entry.group
        if self.entry.line:  # groups stay together, so lines may move
            row["line"] = self.entry.line
        row["scores"] = {name: _number(score) for name, score in self.scores.items()}
        if total is not None:
            row["reward"] = _number(total)
        if self.problem:
            row["error"] = self.problem
        return row


def score_files(
    rewards: Rewards,
    entries: Sequence[Entry],
    *,
    batch_size: int = 32,
    whole_groups: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Row]:
    """Score entries batch by batch, one row each, in their order.

    Args:
        rewards: as for `Trainer`.
        entries: from `grpokit.evaluation.sample_files`; the samples of a group follow each other.
        batch_size: the number of samples that are opened at a time.
        whole_groups: keep a group together even if it is larger than a batch, for rewards that compare its samples.
        say: called with a sentence if a reward with `on_error: skip` failed.

    Raises:
        UsageError: batch_size is below 1, or a reward cannot work with its parameters or the targets.
        RewardError: a reward failed.
    """
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, got {batch_size}.")
    terms = as_terms(rewards)
    weights = {term.name: term.weight for term in terms}
    lost = torch.zeros(len(terms), dtype=torch.int64)
    for batch in _batches(entries, batch_size, whole_groups):
        samples, problems = _opened(batch)
        columns: dict[int, list[float]] = {}
        if samples:
            scores = _scores(terms, batch, samples)
            columns = dict(zip(samples, scores.matrix.tolist(), strict=True))
            lost += scores.lost.sum(0)
            for note in scores.notes:
                say(note)
        for i, entry in enumerate(batch):
            values = columns.get(i, [math.nan] * len(terms))
            named = dict(zip(weights, values, strict=True))
            yield Row(entry=entry, scores=named, weights=weights, problem=problems.get(i, ""))
        refuse_losses(terms, lost.tolist(), len(entries))


def _batches(entries: Sequence[Entry], size: int, whole_groups: bool) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    key: Callable[[Entry], int] = (lambda entry: entry.group) if whole_groups else id
    for _, part in itertools.groupby(entries, key=key):
        together = list(part)
        if batch and len(batch) + len(together) > size:
            yield batch
            batch = []
        batch += together
    if batch:
        yield batch


def _opened(batch: Sequence[Entry]) -> tuple[dict[int, Sample], dict[int, str]]:
    """By their places in a batch, the samples that can be read, and why the others cannot."""
    samples: dict[int, Sample] = {}
    problems: dict[int, str] = {}
    prompts: dict[Callable[[], Prompt], Prompt] = {}  # a group's pictures are read once
    for i, entry in enumerate(batch):
        try:
            if entry.prompt not in prompts:
                prompts[entry.prompt] = entry.prompt()
            samples[i] = entry.open(prompts[entry.prompt])
        except DataError as error:
            problems[i] = str(error)
    return samples, problems


def _scores(terms: Sequence[RewardTerm], batch: Sequence[Entry], samples: Mapping[int, Sample]) -> Scores:
    try:
        return Scoring(terms, list(samples.values())).result()
    except GrpokitError as error:
        first = batch[min(samples)].where
        last = batch[max(samples)].where
        raise reworded(error, f"{error} (Rows are counted from 0, in the batch from {first} to {last}.)") from error


def totals(rows: Sequence[Row]) -> list[float]:
    """The rows' totals (see `grpokit.reward_totals.totals`); NaN for a row that could not be read or scored."""
    if not rows:
        return []
    scores = [list(row.scores.values()) for row in rows]
    matrix = torch.tensor(scores, dtype=torch.float64)  # [B, R]
    weights = torch.tensor([*rows[0].weights.values()], dtype=torch.float64)
    groups = torch.tensor([row.entry.group for row in rows])
    found: list[float] = reward_totals.totals(matrix, weights, groups).tolist()
    return found


@dataclass(frozen=True, kw_only=True)
class Column:
    """A summary of one reward, or of the rows' totals.

    Attributes:
        mean: over the scored entries; NaN if there are none.
        half_width: of the mean's 95 % interval, by Student's t over the groups.
        lowest: the lowest score.
        highest: the highest score.
        scored: the number of entries with a score.
        unscored: the names of the other entries that could be read.
    """

    mean: float
    half_width: float
    lowest: float
    highest: float
    scored: int
    unscored: Sequence[str]


def summary(rows: Sequence[Row]) -> dict[str, Column]:
    """Reward -> its summary; the last one, "reward", is of the totals."""
    weights = rows[0].weights if rows else {}
    groups = [row.entry.group for row in rows]
    columns = {name: [row.scores[name] for row in rows] for name in weights}
    summaries = {}
    for name, column in columns.items():
        mean = mean_of_totals([column], [1.0], groups)
        summaries[name] = _column(rows, column, mean)
    mean = mean_of_totals(columns.values(), weights.values(), groups)
    summaries["reward"] = _column(rows, totals(rows), mean)
    return summaries


def _column(rows: Sequence[Row], values: Sequence[float], mean: Mean) -> Column:
    numbers = []
    unscored = []
    for row, value in zip(rows, values, strict=True):
        if not math.isnan(value):
            numbers.append(value)
        elif not row.problem:
            unscored.append(row.entry.where)
    return Column(
        mean=mean.value,
        half_width=mean.half_width,
        lowest=min(numbers, default=math.nan),
        highest=max(numbers, default=math.nan),
        scored=len(numbers),
        unscored=unscored,
    )


def check_accepts(uses: Iterable[str], entries: Sequence[Entry]) -> None:
    """Check that the rewards accept the entries, as far as their plugins declare it.

    Raises:
        UsageError: a reward cannot score one of the entries.
    """
    first = {entry.kind: entry.where for entry in reversed(entries)}
    for use in uses:
        for kind, where in first.items():
            registry.check_accepts(use, kind, what=f"some samples (such as {where}) are")


def compares_groups(uses: Iterable[str]) -> bool:
    """Whether any reward may compare the samples of a group: all do, unless their plugin declares `per_sample`."""
    specs = [registry.spec_of("reward", use) for use in uses]
    return not all(isinstance(spec, RewardSpec) and spec.per_sample for spec in specs)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
