"""Scores samples in files, without a policy or training; only one batch of pictures is in memory.

Each row is yielded as soon as its batch is scored. A file that cannot be read becomes a row with its problem, and the
others are scored. An error inside a reward stops everything, as in a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from grpokit import registry, reward_totals
from grpokit.errors import DataError, GrpokitError, RewardError, UsageError, counted, reworded
from grpokit.evaluation.intervals import mean_of_totals
from grpokit.evaluation.sample_files import Entry
from grpokit.registry.specs import RewardSpec
from grpokit.rewards.failures import too_many
from grpokit.rewards.scoring import score
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
            total: the row's total, from `Tally.totals`; None leaves it out.
        """
        key, value = ("file", str(self.entry.output)) if self.entry.kind == "image" else ("output", self.entry.output)
        row: dict[str, Any] = {"prompt": self.entry.text, key: value, "group": self.entry.group}
        row |= {"line": self.entry.line} if self.entry.line else {}  # groups stay together, so lines may move
        row["scores"] = {name: _number(x) for name, x in self.scores.items()}
        if total is not None:
            row["reward"] = _number(total)
        return row | ({"error": self.problem} if self.problem else {})


def score_files(
    rewards: Rewards,
    entries: Sequence[Entry],
    *,
    batch_size: int = 32,
    whole_groups: bool = True,
    say: Callable[[str], None] | None = None,
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
    unlimited = [replace(term, skip_limit=1.0) for term in terms]  # the limit is for all batches together
    failures = [0] * len(terms)
    for batch in _batches(entries, batch_size, whole_groups):
        more = yield from _rows_of(unlimited, batch, say)
        failures = [a + b for a, b in zip(failures, more, strict=True)]
        for term, count in zip(terms, failures, strict=True):
            if count > term.skip_limit * len(entries):
                raise RewardError(
                    f"Reward '{term.name}' lost {count:,} of {counted(len(entries), 'sample')} to errors so far; "
                    f"{too_many(term)}"
                )


def _batches(entries: Sequence[Entry], size: int, whole_groups: bool) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    for i, entry in enumerate(entries):
        begins = i == 0 or entry.group != entries[i - 1].group or not whole_groups
        if begins and batch:
            end = i + 1
            while whole_groups and end < len(entries) and entries[end].group == entry.group:
                end += 1
            if len(batch) + end - i > size:
                yield batch
                batch = []
        batch.append(entry)
    if batch:
        yield batch


def _rows_of(
    terms: Sequence[RewardTerm], batch: Sequence[Entry], say: Callable[[str], None] | None
) -> Generator[Row, None, Sequence[int]]:
    """Yield the rows of a batch; return the number of samples that each reward lost to errors."""
    samples: dict[int, Sample] = {}
    problems: dict[int, str] = {}
    prompts: dict[Callable[[], Prompt], Prompt] = {}  # a group's pictures are read once
    for i, entry in enumerate(batch):
        try:
            if entry.prompt not in prompts and not entry.problem:
                prompts[entry.prompt] = entry.prompt()
            samples[i] = entry.open(prompts.get(entry.prompt))
        except DataError as error:
            problems[i] = str(error)
    columns: dict[int, list[float]] = {}
    failures: Sequence[int] = [0] * len(terms)
    if samples:
        try:
            answers = score(terms, list(samples.values()))
        except GrpokitError as error:
            first, last = batch[min(samples)].where, batch[max(samples)].where
            raise reworded(error, f"{error} (Rows are counted from 0, in the batch from {first} to {last}.)") from error
        columns, failures = dict(zip(samples, answers.matrix.tolist(), strict=True)), answers.failed
        for note in answers.notes if say else ():
            say(note)  # type: ignore[misc]
    weights = {term.name: term.weight for term in terms}
    for i, entry in enumerate(batch):
        values = columns.get(i, [math.nan] * len(terms))
        scores = dict(zip(weights, values, strict=True))
        yield Row(entry=entry, scores=scores, weights=weights, problem=problems.get(i, ""))
    return failures


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


@dataclass
class Tally:
    """Collects the scores of rows, without their pictures."""

    columns: dict[str, list[float]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Count a row."""
        for name in row.scores:
            self.columns.setdefault(name, [])
        self.weights.update(row.weights)
        if row.problem:
            self.problems[row.entry.where] = row.problem
            return
        self.names.append(row.entry.where)
        self.groups.append(row.entry.group)
        for name, value in row.scores.items():
            self.columns[name].append(value)

    def totals(self) -> list[float]:
        """The totals of the rows that could be read, in order (see `grpokit.reward_totals.totals`)."""
        matrix = torch.tensor(list(self.columns.values()), dtype=torch.float64).T  # [B, R]
        weights = torch.tensor(list(self.weights.values()), dtype=torch.float64)
        return reward_totals.totals(matrix, weights, torch.tensor(self.groups)).tolist() if self.groups else []

    def summary(self) -> dict[str, Column]:
        """Reward -> its summary; the last one, "reward", is of the totals."""
        summaries = {name: self._column(values, {name: 1.0}) for name, values in self.columns.items()}
        return summaries | {"reward": self._column(self.totals(), self.weights)}

    def _column(self, values: Sequence[float], weights: Mapping[str, float]) -> Column:
        numbers = [x for x in values if not math.isnan(x)]
        mean = mean_of_totals([self.columns[name] for name in weights], weights.values(), self.groups)
        return Column(
            mean=mean.value,
            half_width=mean.half_width,
            lowest=min(numbers, default=math.nan),
            highest=max(numbers, default=math.nan),
            scored=len(numbers),
            unscored=[name for name, x in zip(self.names, values, strict=True) if math.isnan(x)],
        )


def check_accepts(uses: Iterable[str], entries: Sequence[Entry]) -> None:
    """Check that the rewards accept the entries, as far as their plugins declare it.

    Raises:
        UsageError: a reward cannot score one of the entries.
    """
    first = {entry.kind: entry.where for entry in reversed(entries) if not entry.problem}
    for use in uses:
        for kind, where in first.items():
            registry.check_accepts(use, kind, what=f"some samples (such as {where}) are")


def compares_groups(uses: Iterable[str]) -> bool:
    """Whether any reward may compare the samples of a group: all do, unless their plugin declares `per_sample`."""
    specs = [registry.spec_of("reward", use) for use in uses]
    return not all(isinstance(spec, RewardSpec) and spec.per_sample for spec in specs)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
