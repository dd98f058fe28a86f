"""Runs rewards: from samples to the matrix [B, R] that the advantage functions take.

A reward is any callable `Sequence[Sample] -> Sequence[float]`. One call gets whole groups. NaN means "cannot score
this sample" and is counted; infinity, a wrong length or a wrong type stop the run and name the reward and the row. An
exception stops it too, unless the term says `on_error="skip"`: then the groups that raise it alone count as unscored,
up to a share of the rows. Rewards in worker processes work on the same samples at the same time as the others.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from grpokit.advantages import totals
from grpokit.errors import RewardError, UsageError, counted, reworded
from grpokit.rewards.validation import checked
from grpokit.rewards.worker_pool import Pending, PooledReward, by_group, in_words
from grpokit.settings import RewardSettings
from grpokit.types import Sample

Reward: TypeAlias = Callable[[Sequence[Sample]], Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class RewardTerm(RewardSettings):
    """A reward with its name and its part in the mix.

    Attributes:
        name: the column's name in metrics.
        reward: the callable.
    """

    name: str
    reward: Reward

    @property
    def monitor(self) -> bool:
        """Whether it is only measured."""
        return self.weight == 0

    def due(self, step: int | None) -> bool:
        """Whether it is measured in a training step, counted from 1; None is no training step."""
        return step is None or not self.monitor or (step - 1) % self.every == 0


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What all rewards said about B samples.

    Attributes:
        matrix: [B, R] fp64, NaN where a reward could not score.
        weights: [R] fp64; 0 for a monitor.
        groups: [B] int64 group ids.
        names: R names.
        seconds: R wall-clock seconds.
        failed: R counts of rows that were lost to exceptions and skipped.
        asked: R, whether the reward was asked at all; a monitor is not in each step.
        notes: a sentence for each reward that raised and was skipped.
    """

    matrix: Tensor
    weights: Tensor
    groups: Tensor
    names: Sequence[str]
    seconds: Sequence[float]
    failed: Sequence[int]
    asked: Sequence[bool]
    notes: Sequence[str] = ()

    @property
    def trained(self) -> Scores:
        """Without the monitors: what advantages are made of."""
        kept = self.weights.nonzero()[:, 0].tolist()
        return Scores(
            matrix=self.matrix[:, kept],
            weights=self.weights[kept],
            groups=self.groups,
            names=[self.names[i] for i in kept],
            seconds=[self.seconds[i] for i in kept],
            failed=[self.failed[i] for i in kept],
            asked=[self.asked[i] for i in kept],
            notes=self.notes,
        )

    @property
    def totals(self) -> Tensor:
        """[B] each row's weighted sum (see `grpokit.advantages.totals`)."""
        return totals(self.matrix, self.weights, self.groups)


def as_terms(rewards: Sequence[Reward | RewardTerm] | Mapping[str, Reward]) -> list[RewardTerm]:
    """Rewards as a user gives them -> named terms; a name that is taken gets a number.

    Raises:
        UsageError: no reward, or something that cannot be called.
    """
    if isinstance(rewards, Mapping):
        given: list[RewardTerm] = [RewardTerm(name=name, reward=reward) for name, reward in rewards.items()]
    else:
        given = [r if isinstance(r, RewardTerm) else RewardTerm(name=_name_of(r), reward=r) for r in rewards]
    if not given:
        raise UsageError("No reward was given: training needs at least one.")
    terms: list[RewardTerm] = []
    for term in given:
        if not callable(term.reward):
            raise UsageError(f"Reward '{term.name}' is {term.reward!r}; expected something to call with samples.")
        if not math.isfinite(term.weight):
            raise UsageError(f"Reward '{term.name}' has the weight {term.weight}; expected a finite number.")
        taken = {"reward", "step", *(t.name for t in terms)}  # the first two mean something else in metrics
        names = [term.name, *(f"{term.name}-{i}" for i in range(2, len(given) + 2))]
        name = next(n for n in names if n not in taken)
        terms.append(replace(term, name=name))
    return terms


def _name_of(reward: Any) -> str:
    reward = getattr(reward, "func", reward)  # functools.partial
    return str(getattr(reward, "__name__", type(reward).__name__))


def score(terms: Sequence[RewardTerm], samples: Sequence[Sample], *, step: int | None = None) -> Scores:
    """Run the rewards on all samples.

    Args:
        terms: the rewards.
        samples: B samples.
        step: of training, from 1, in which some monitors may not be due; None asks all.

    Raises:
        RewardError: a reward raised (and its `on_error` is "stop", or too many rows are lost), or returned infinity,
            a wrong length or type.
        UsageError: a reward cannot work with its parameters or with the targets, whatever its `on_error`.
    """
    asked = [term.due(step) for term in terms]
    begun = {
        i: term.reward.submit(samples)
        for i, term in enumerate(terms)
        if asked[i] and isinstance(term.reward, PooledReward)
    }
    columns = [_Column(values=[math.nan] * len(samples)) for _ in terms]
    try:
        for i, term in enumerate(terms):
            if asked[i] and i not in begun:
                columns[i] = _measured(term, samples)
        for i, pending in begun.items():
            columns[i] = _collected(terms[i], pending, samples)
    finally:
        for pending in begun.values():
            pending.cancel()
    return Scores(
        matrix=torch.tensor([c.values for c in columns], dtype=torch.float64).T.contiguous(),
        weights=torch.tensor([t.weight for t in terms], dtype=torch.float64),
        groups=torch.tensor([sample.group for sample in samples], dtype=torch.int64),
        names=[t.name for t in terms],
        seconds=[c.seconds for c in columns],
        failed=[c.lost for c in columns],
        asked=asked,
        notes=[c.note for c in columns if c.note],
    )


@dataclass(frozen=True, kw_only=True)
class _Column:
    """What one reward said: values [B], how many rows its exceptions cost, and a sentence about these."""

    values: list[float]
    seconds: float = 0.0
    lost: int = 0
    note: str = ""


def _measured(term: RewardTerm, samples: Sequence[Sample]) -> _Column:
    start = time.perf_counter()
    lost, note = 0, ""
    try:
        values = _call(term, samples)
    except UsageError:  # a parameter or a target is wrong: skipping rows would hide it
        raise
    except (Exception, SystemExit) as error:
        values, lost = _rescued(term, samples, error)
        note = f"{_said(term, error, samples)} Called again group by group, it left {counted(lost, 'row')} unscored."
    values = checked(term.name, values, samples)
    return _Column(values=values, seconds=time.perf_counter() - start, lost=lost, note=note)


def _collected(term: RewardTerm, pending: Pending, samples: Sequence[Sample]) -> _Column:
    """What the worker processes of a reward said; each portion that failed is an error of its rows."""
    values = [math.nan] * len(samples)
    lost, failures = 0, []
    for portion in pending:
        if portion.error is not None:
            raise reworded(portion.error, f"Reward '{term.name}': {portion.error}") from portion.error
        if not portion.failure:
            part = [samples[row] for row in portion.rows]
            for row, value in zip(portion.rows, checked(term.name, portion.values, part, portion.rows), strict=True):
                values[row] = value
            continue
        failures.append(f"{portion.failure} on {in_words(portion.rows, samples)}")
        if term.on_error == "stop":
            raise RewardError(f"Reward '{term.name}' {failures[0]}. {_REMEDY}")
        lost += len(portion.rows)
        if lost > term.skip_limit * len(samples):
            raise RewardError(
                f"Reward '{term.name}' {failures[0]}; in all it lost {lost} of {len(samples)} rows or more, and "
                f"skip_limit allows a share of {term.skip_limit:g}. Mend the reward, or raise its skip_limit."
            )
    more = f", and {counted(len(failures) - 3, 'call')} failed beside these" if len(failures) > 3 else ""
    left = f"Reward '{term.name}' left {counted(lost, 'row')} unscored"
    note = f"{left}: it {'; it '.join(failures[:3])}{more}." if lost else ""
    return _Column(values=values, seconds=pending.seconds, lost=lost, note=note)


_REMEDY = "Mend it, or set `on_error: skip` to count its rows as unscored."


def _call(term: RewardTerm, samples: Sequence[Sample]) -> Any:
    try:
        with torch.no_grad():
            return term.reward(list(samples))  # its own list: one that is sorted in place would mix up the rows
    except UsageError as error:
        raise reworded(error, f"Reward '{term.name}': {error}") from error


def _rescued(term: RewardTerm, samples: Sequence[Sample], error: BaseException) -> tuple[list[float], int]:
    """What a reward that raised says of each group alone, NaN where it raises again, and how many rows that lost."""
    said = _said(term, error, samples)
    if term.on_error == "stop":
        raise RewardError(f"{said} {_REMEDY}") from error
    traceback.clear_frames(error.__traceback__)  # they hold what the failed call had made
    values = [math.nan] * len(samples)
    lost = 0
    for rows in by_group(samples):
        part = [samples[row] for row in rows]
        try:
            answer = _call(term, part)
        except UsageError:
            raise
        except (Exception, SystemExit):
            lost += len(rows)
        else:
            for row, value in zip(rows, checked(term.name, answer, part, rows), strict=True):
                values[row] = value
    if lost > term.skip_limit * len(samples):
        raise RewardError(
            f"{said} Called again group by group, it lost {lost} of {len(samples)} rows; skip_limit allows a share of "
            f"{term.skip_limit:g}. Mend the reward, or raise its skip_limit."
        ) from error
    return values, lost


def _said(term: RewardTerm, error: BaseException, samples: Sequence[Sample]) -> str:
    """What a reward raised, on one line."""
    text = " ".join(f": {error}".split()) if str(error) else ""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"Reward '{term.name}' raised {type(error).__name__} on {counted(len(samples), 'sample')}{text} "
        f"({Path(place.filename).name}, line {place.lineno}, in {place.name})."
    )
