"""One reward's column of the matrix, and what a failed call costs.

As `on_error` says, a failure stops the run, or costs the rows of the groups that fail alone. Calls in the run's own
process and answers from elsewhere are judged alike.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from grpokit.errors import PluginError, RewardError, a_type, plural, reword
from grpokit.processes.forks import forks_ended
from grpokit.rewards.calling import call_reward, failure_of, portion_of
from grpokit.rewards.isolation import own_copies, torch_state_kept
from grpokit.rewards.submission import Pending, Portion, Submits, by_group
from grpokit.rewards.terms import RewardTerm
from grpokit.types import Sample

_PAGE = "guards#a-reward-that-raises"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One reward's answer.

    Attributes:
        values: [B], NaN where it could not score.
        seconds: of wall-clock time.
        lost: the rows that its failures cost.
        notes: sentences for the user.
    """

    values: list[float]
    seconds: float = 0.0
    lost: Sequence[int] = ()
    notes: Sequence[str] = ()


def score_here(term: RewardTerm, samples: Sequence[Sample]) -> Column:
    """Call a reward in the run's own process.

    Raises:
        RewardError: it raised and may not be skipped, or gave an invalid answer.
        UsageError: a parameter or a target is wrong.
    """
    start = time.perf_counter()
    with torch_state_kept():
        column = _judged(term, _called(term, samples), samples)
    return replace(column, seconds=time.perf_counter() - start)


def _called(term: RewardTerm, samples: Sequence[Sample]) -> Iterator[Portion]:
    """One call with all samples; where it fails and may be skipped, it costs nothing, and each group has its own."""
    portion = call_reward(term.reward, range(len(samples)), own_copies(samples))
    if not portion.failure or term.on_error == "stop":
        yield portion
        return
    yield replace(portion, rows=[])
    for rows in by_group(samples):
        yield call_reward(term.reward, rows, own_copies([samples[row] for row in rows]))


def submit(reward: Submits, samples: Sequence[Sample]) -> Pending:
    """Hand samples out to a reward that scores elsewhere; `collect` judges what goes wrong here, too."""
    try:
        with forks_ended():
            pending: Any = reward.submit(own_copies(samples))
        if not isinstance(pending, Pending):
            raise PluginError(f"its submit returned {a_type(pending)}; expected a grpokit.Pending.")
        return pending
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        answer: Future[Portion] = Future()
        answer.set_exception(error)
        return Pending([answer])


def collect(term: RewardTerm, pending: Pending, samples: Sequence[Sample]) -> Column:
    """Wait for the answers of a reward that scores elsewhere; errors as for `score_here`."""
    return replace(_judged(term, _each_row_once(pending, samples), samples), seconds=pending.seconds)


def _each_row_once(pending: Pending, samples: Sequence[Sample]) -> Iterator[Portion]:
    """The portions, checked to hold each row once; where waiting for one raises, all rows without an answer fail."""
    unanswered = set(range(len(samples)))
    portions = iter(pending)
    while unanswered:
        try:
            portion = next(portions, Portion(rows=[]))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            portion = failure_of(error, sorted(unanswered), samples)
        rows = list(portion.rows)
        if not rows or len(set(rows)) < len(rows) or not unanswered.issuperset(rows):
            wrong = (
                f"it answered with {f'rows {rows[:20]}' if rows else 'nothing more'} where "
                f"{plural(len(unanswered), 'row')} of {len(samples)} had no answer yet; expected a grpokit.Portion "
                "with some of these rows, each once."
            )
            portion = Portion(rows=rows, error=RewardError(wrong))
        unanswered.difference_update(rows)
        lost = portion.failure or portion.error
        yield portion if lost else portion_of(portion.values, rows, [samples[row] for row in rows])


def _judged(term: RewardTerm, portions: Iterable[Portion], samples: Sequence[Sample]) -> Column:
    """The scores of all portions; what a failure costs is decided here."""
    values = [math.nan] * len(samples)
    failures: list[str] = []
    lost: list[int] = []
    for portion in portions:
        if portion.error is not None:
            raise reword(portion.error, f"Reward '{term.name}': {portion.error}") from portion.error
        if not portion.failure:
            for row, value in zip(portion.rows, portion.values, strict=True):
                values[row] = value
            continue
        failures.append(f"{portion.failure} on {_in_words(portion.rows or range(len(samples)), samples)}")
        if term.on_error == "stop":
            raise RewardError(
                f"Reward '{term.name}' {failures[0]}. Correct it, or set `on_error: skip` in its config to count its "
                "rows as unscored.",
                page=_PAGE,
            ) from portion.cause
        if portion.cause is not None:
            traceback.clear_frames(portion.cause.__traceback__)  # they hold what the failed call had made
        lost += portion.rows
    notes = []
    if failures:
        more = f", and {plural(len(failures) - 3, 'other call')} failed" if len(failures) > 3 else ""
        left = f"left {plural(len(lost), 'row')} unscored" if lost else "scored all rows once asked again by group"
        notes = [f"Reward '{term.name}' {left}: it {'; it '.join(failures[:3])}{more}."]
    return Column(values=values, lost=lost, notes=notes)


def _in_words(rows: Sequence[int], samples: Sequence[Sample]) -> str:
    span = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]}-{rows[-1]}"
    return f"{span} (prompt {samples[rows[0]].prompt.text!r})"


def refuse_losses(terms: Sequence[RewardTerm], lost: Sequence[int], rows: int, notes: Sequence[str]) -> None:
    """Stop where failures have cost a reward too many rows.

    Args:
        terms: the rewards.
        lost: R counts of rows.
        rows: of which these are a part.
        notes: sentences on the failures.

    Raises:
        RewardError: it is more than a reward's `skip_limit` allows.
    """
    for term, count in zip(terms, lost, strict=True):
        if count > term.skip_limit * rows:
            raise RewardError(
                f"Reward '{term.name}' lost {count:,} of {plural(rows, 'row')}; skip_limit allows a share of "
                f"{term.skip_limit:g}. Correct the reward, or raise its skip_limit. {' '.join(notes)}".rstrip(),
                page=_PAGE,
            )
