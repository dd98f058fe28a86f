"""Runs rewards: from samples to the matrix [B, R] that the advantage functions take.

A reward is any callable `Sequence[Sample] -> Sequence[float]`. One call gets whole groups. NaN means "cannot score
this sample" and is counted; infinity, a wrong length or a wrong type stop the run and name the reward and the row. An
exception stops it too, unless the term says `on_error="skip"`: then the groups that raise it alone count as unscored,
up to a share of the rows.
"""

from __future__ import annotations

import contextlib
import math
import numbers
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from grpokit.errors import RewardError, UsageError
from grpokit.types import Sample

Reward: TypeAlias = Callable[[Sequence[Sample]], Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class RewardTerm:
    """A reward with its name and its weight in the mix.

    Attributes:
        name: the column's name in metrics.
        reward: the callable.
        weight: what it is multiplied by in the weighted sum.
        on_error: "stop", or "skip": an exception makes its rows unscored.
        skip_limit: with "skip", the largest share of rows that may be lost to exceptions before it stops all the same.
    """

    name: str
    reward: Reward
    weight: float = 1.0
    on_error: Literal["stop", "skip"] = "stop"
    skip_limit: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What all rewards said about B samples.

    Attributes:
        matrix: [B, R] fp64, NaN where a reward could not score.
        weights: [R] fp64.
        names: R names.
        seconds: R wall-clock seconds.
        failed: R counts of rows that were lost to exceptions and skipped.
        notes: a sentence for each reward that raised and was skipped.
    """

    matrix: Tensor
    weights: Tensor
    names: Sequence[str]
    seconds: Sequence[float]
    failed: Sequence[int]
    notes: Sequence[str] = ()

    @property
    def total(self) -> Tensor:
        """[B] weighted sum of what each row got; NaN for a row that no reward scored.

        A score that is missing counts as that reward's mean over the other rows, not as 0.
        """
        return weighted_sum(self.matrix, self.weights)


def weighted_sum(matrix: Tensor, weights: Tensor) -> Tensor:
    """Scores [B, R] and weights [R] -> [B], with missing scores as in `Scores.total`."""
    means = matrix.nanmean(0).nan_to_num(nan=0.0)
    total = (torch.where(matrix.isnan(), means, matrix) * weights.to(matrix)).sum(-1)
    return torch.where(matrix.isnan().all(-1), torch.nan, total)


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


def score(terms: Sequence[RewardTerm], samples: Sequence[Sample]) -> Scores:
    """Run every reward on all samples.

    Raises:
        RewardError: a reward raised (and its `on_error` is "stop", or too many rows are lost), or returned infinity,
            a wrong length or type.
        UsageError: a reward cannot work with its parameters or with the targets, whatever its `on_error`.
    """
    columns: list[list[float]] = []
    seconds, failed, notes = [], [], []
    for term in terms:
        start = time.perf_counter()
        lost = 0
        try:
            values = _call(term, samples)
        except UsageError:  # a parameter or a target is wrong: skipping rows would hide it
            raise
        except (Exception, SystemExit) as error:
            values, lost = _rescued(term, samples, error)
            notes.append(f"{_said(term, error, samples)} Called again group by group, it left {lost} rows unscored.")
        columns.append(_checked(term.name, values, samples))
        failed.append(lost)
        seconds.append(time.perf_counter() - start)
    return Scores(
        matrix=torch.tensor(columns, dtype=torch.float64).T.contiguous(),
        weights=torch.tensor([t.weight for t in terms], dtype=torch.float64),
        names=[t.name for t in terms],
        seconds=seconds,
        failed=failed,
        notes=notes,
    )


def _call(term: RewardTerm, samples: Sequence[Sample]) -> Any:
    try:
        with torch.no_grad():
            return term.reward(samples)
    except UsageError as error:
        raise type(error)(f"Reward '{term.name}': {error}") from error


def _rescued(term: RewardTerm, samples: Sequence[Sample], error: BaseException) -> tuple[list[float], int]:
    """What a reward that raised says of each group alone, NaN where it raises again, and how many rows that lost."""
    said = _said(term, error, samples)
    if term.on_error == "stop":
        raise RewardError(f"{said} Mend it, or set `on_error: skip` to count its rows as unscored.") from error
    traceback.clear_frames(error.__traceback__)  # they hold what the failed call had made
    values = [math.nan] * len(samples)
    groups: dict[int, list[int]] = {}
    for row, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(row)
    lost = 0
    for rows in groups.values():
        part = [samples[row] for row in rows]
        try:
            answer = _call(term, part)
        except UsageError:
            raise
        except (Exception, SystemExit):
            lost += len(rows)
        else:
            for row, value in zip(rows, _checked(term.name, answer, part, rows), strict=True):
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
        f"Reward '{term.name}' raised {type(error).__name__} on {len(samples)} samples{text} "
        f"({Path(place.filename).name}, line {place.lineno}, in {place.name})."
    )


def _checked(name: str, values: Any, samples: Sequence[Sample], rows: Sequence[int] | None = None) -> list[float]:
    if isinstance(values, Tensor) or type(values).__module__ == "numpy":
        values = values.tolist()
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise RewardError(f"Reward '{name}' returned a {type(values).__name__}; expected one number per sample.")
    if len(values) != len(samples):
        raise RewardError(
            f"Reward '{name}' returned {len(values)} scores for {len(samples)} samples; expected one per sample."
        )
    checked = []
    for i, value in enumerate(values):
        where = f"row {i if rows is None else rows[i]} (prompt {samples[i].prompt.text!r})"
        if hasattr(value, "item"):  # of numpy or torch
            with contextlib.suppress(RuntimeError, ValueError):  # more than one number: refused below
                value = value.item()
        if not isinstance(value, numbers.Real):
            raise RewardError(
                f"Reward '{name}' gave {value!r} ({type(value).__name__}) for {where}; expected a number, or NaN for "
                "'cannot score this sample'."
            )
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isinf(number):
            raise RewardError(
                f"Reward '{name}' gave {number} for {where}; expected a finite number, or NaN for 'cannot score this "
                "sample'."
            )
        checked.append(number)
    return checked
