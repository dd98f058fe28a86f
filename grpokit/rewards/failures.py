"""One reward's column of the matrix: computed in the run's own process, or collected from elsewhere.

This module decides what a failure costs. An exception of any class is an error of the reward. As `on_error` says, it
stops the run, or costs the groups that raise it alone. KeyboardInterrupt is the user's, and is passed on.
"""

from __future__ import annotations

import math
import numbers
import time
import traceback
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from grpokit.errors import GrpokitError, RewardError, UsageError, a_type, counted, one_line, reworded, shown, typed_line
from grpokit.rewards.isolation import own_copies, process_state_kept
from grpokit.rewards.submission import REORDERED, Pending, Portion, Submits, by_group, in_words, meta_keys, reordered
from grpokit.rewards.terms import RewardTerm
from grpokit.rewards.validation import checked
from grpokit.types import Sample

_REMEDY = "Correct it, or set `on_error: skip` in its config to count its rows as unscored."


@dataclass(frozen=True, kw_only=True)
class Column:
    """One reward's answer.

    Attributes:
        values: [B], NaN where it could not score.
        seconds: of wall-clock time.
        lost: the rows that its exceptions cost.
        notes: sentences for the user.
    """

    values: list[float]
    seconds: float = 0.0
    lost: Sequence[int] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Others:
    """The step's rows that are not in the call: `skip_limit` is a share of all.

    Attributes:
        rows: how many there are.
        lost: how many of them the reward's exceptions cost.
    """

    rows: int = 0
    lost: int = 0


def measured(term: RewardTerm, samples: Sequence[Sample], others: Others = Others()) -> Column:
    """Call a reward in the run's own process.

    Args:
        term: the reward.
        samples: the rows of the call.
        others: the step's other rows.

    Raises:
        RewardError: it raised and may not be skipped, or gave an invalid answer.
        UsageError: a parameter or a target is wrong.
    """
    start = time.perf_counter()
    lost: list[int] = []
    notes: list[str] = []
    changes: list[str] = []
    try:
        values = _call(term, samples, None, changes)
    except _RaisedError as raised:
        failure = _failure(term, raised.error, samples)
        if term.on_error == "stop":
            raise RewardError(f"{failure} {_REMEDY}", page="guards#a-reward-that-raises") from raised.error
        traceback.clear_frames(raised.error.__traceback__)  # they hold what the failed call had made
        values, lost = _group_by_group(term, samples, changes)
        again = f"{failure} Called again group by group, it"
        if _is_too_many(term, lost, samples, others):
            raise RewardError(
                f"{again} lost {_share(lost, samples, others)}; {too_many(term)}", page="guards#a-reward-that-raises"
            ) from raised.error
        notes.append(f"{again} left {counted(len(lost), 'row')} unscored.")
    notes += _new_notices(term, changes)
    return Column(values=values, seconds=time.perf_counter() - start, lost=lost, notes=notes)


class _RaisedError(Exception):
    """A reward raised `error`, which `on_error` may skip."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _call(term: RewardTerm, samples: Sequence[Sample], rows: Sequence[int] | None, changes: list[str]) -> list[float]:
    """The scores of some rows; what the reward changed of the process's state is added to `changes`."""
    assert callable(term.reward)
    copies = own_copies(samples)
    order = tuple(copies)
    try:
        with process_state_kept(changes):
            answer = term.reward(copies)
    except UsageError as error:  # a parameter or a target is wrong: skipping rows would hide it
        raise _named(error, term) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _RaisedError(error) from error
    if reordered(copies, order):
        raise RewardError(f"Reward '{term.name}' {REORDERED}.", page="guards#a-reward-that-changes-things")
    return checked(term.name, answer, samples, rows)


def _group_by_group(term: RewardTerm, samples: Sequence[Sample], changes: list[str]) -> tuple[list[float], list[int]]:
    """The scores of each group alone, NaN where the reward raises again, and the rows lost to that."""
    values = [math.nan] * len(samples)
    lost: list[int] = []
    for rows in by_group(samples):
        try:
            scores = _call(term, [samples[row] for row in rows], rows, changes)
        except _RaisedError:
            lost += rows
        else:
            for row, value in zip(rows, scores, strict=True):
                values[row] = value
    return values, lost


_NOTICED: weakref.WeakValueDictionary[tuple[int, str], RewardTerm] = weakref.WeakValueDictionary()


def _new_notices(term: RewardTerm, changes: Sequence[str]) -> list[str]:
    """A sentence on what a reward changed of the process's state, the first time that it does."""
    new = [change for change in dict.fromkeys(changes) if (id(term), change) not in _NOTICED]
    _NOTICED.update({(id(term), change): term for change in new})
    if not new:
        return []
    return [
        f"Reward '{term.name}' changed {' and '.join(new)}, which affects the whole process. It is restored "
        "after each call. Change such state only in a `with` block inside the reward."
    ]


def submitted(term: RewardTerm, reward: Submits, samples: Sequence[Sample]) -> Pending:
    """Hand samples out to a reward that scores elsewhere.

    Raises:
        RewardError: its `submit` gave no `Pending`.
        UsageError: a parameter or a sample is wrong.
    """
    try:
        pending = reward.submit(own_copies(samples))
    except UsageError as error:
        raise _named(error, term) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # `collected` decides whether this stops the run
        failed: Future[Portion] = Future()
        failed.set_result(Portion(rows=range(len(samples)), failure=f"raised {typed_line(error)} {_place(error)}"))
        return Pending([failed])
    if not isinstance(pending, Pending):
        raise RewardError(f"Reward '{term.name}': its submit returned {a_type(pending)}; expected a grpokit.Pending.")
    return pending


def collected(term: RewardTerm, pending: Pending, samples: Sequence[Sample], others: Others = Others()) -> Column:
    """Wait for the answers of a reward that scores elsewhere; each portion that failed is an error of its rows.

    Args:
        term: the reward.
        pending: what its `submit` gave.
        samples: the rows of the call.
        others: the step's other rows.

    Raises:
        RewardError: a portion failed and may not be skipped, or an answer is invalid.
        UsageError: a parameter, a target or a sample is wrong.
    """
    values = [math.nan] * len(samples)
    failures: list[str] = []
    lost: list[int] = []
    for portion in _portions(term, pending, len(samples)):
        if portion.error is not None:
            raise _named(portion.error, term) from portion.error
        if not portion.failure:
            part = [samples[row] for row in portion.rows]
            scores = checked(term.name, portion.values, part, portion.rows)
            for row, value in zip(portion.rows, scores, strict=True):
                values[row] = value
            continue
        failures.append(f"{portion.failure} on {in_words(portion.rows, samples)}")
        if term.on_error == "stop":
            raise RewardError(f"Reward '{term.name}' {failures[0]}. {_REMEDY}", page="guards#a-reward-that-raises")
        lost += portion.rows
        if _is_too_many(term, lost, samples, others):
            raise RewardError(
                f"Reward '{term.name}' {failures[0]}; in all it lost {_share(lost, samples, others)} or more, and "
                f"{too_many(term)}",
                page="guards#a-reward-that-raises",
            )
    notes = []
    if lost:
        more = f", and {counted(len(failures) - 3, 'other call')} failed" if len(failures) > 3 else ""
        rows = counted(len(lost), "row")
        notes = [f"Reward '{term.name}' left {rows} unscored: it {'; it '.join(failures[:3])}{more}."]
    return Column(values=values, seconds=pending.seconds, lost=lost, notes=notes)


def _portions(term: RewardTerm, pending: Pending, count: int) -> Iterator[Portion]:
    """The portions, checked to hold each row once; where waiting for one raises, all rows without an answer fail."""
    unanswered = set(range(count))
    portions = iter(pending)
    while unanswered:
        try:
            portion = next(portions, None)
        except UsageError as error:
            raise _named(error, term) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            portion = Portion(rows=sorted(unanswered), failure=f"raised {typed_line(error)} {_place(error)}")
        instead = "nothing more" if portion is None else a_type(portion)
        if isinstance(portion, Portion):
            rows = list(portion.rows) if isinstance(portion.rows, Iterable) else []
            numbered = all(isinstance(row, numbers.Integral) for row in rows)
            if rows and numbered and len(set(rows)) == len(rows) and unanswered.issuperset(rows):
                unanswered.difference_update(rows)
                yield replace(portion, rows=rows)
                continue
            wrong = f"that are {shown(portion.rows)}" if not isinstance(portion.rows, Iterable) else f"{rows[:20]}"
            instead = f"rows {wrong}"
        rest = f"{counted(len(unanswered), 'row')} of {count}"
        raise RewardError(
            f"Reward '{term.name}' answered with {instead} where {rest} had no answer yet; expected a "
            "grpokit.Portion with some of these rows, each once."
        )


def _named(error: Exception, term: RewardTerm) -> GrpokitError:
    """An error with its reward's name in front; one that is not grpokit's becomes a RewardError."""
    if not isinstance(error, GrpokitError):
        return RewardError(f"Reward '{term.name}': {typed_line(error)}.")
    try:
        text = str(error)
    except Exception:  # a user's class may fail in its __str__
        text = one_line(error)
    return reworded(error, f"Reward '{term.name}': {text}")


def _failure(term: RewardTerm, error: BaseException, samples: Sequence[Sample]) -> str:
    """What a reward raised, on one line."""
    kind, text = type(error).__name__, one_line(error)
    text = "" if text == kind else f": {text}{meta_keys(error, samples)}"
    return f"Reward '{term.name}' raised {kind} on {counted(len(samples), 'sample')}{text} {_place(error)}."


def _place(error: BaseException) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"({Path(place.filename).name}, line {place.lineno}, in {place.name})"


def _is_too_many(term: RewardTerm, lost: Sequence[int], samples: Sequence[Sample], others: Others) -> bool:
    return len(lost) + others.lost > term.skip_limit * (len(samples) + others.rows)


def _share(lost: Sequence[int], samples: Sequence[Sample], others: Others) -> str:
    """How many rows are lost, of how many, in words."""
    rows = f"{len(lost)} of {len(samples)} rows"
    if not others.rows:
        return rows
    step = f"{len(lost) + others.lost} of {len(samples) + others.rows}"
    return f"{rows}, and with those of the step's other groups {step}"


def too_many(term: RewardTerm) -> str:
    """The end of a message about more failed rows than `skip_limit` allows."""
    return f"skip_limit allows a share of {term.skip_limit:g}. Correct the reward, or raise its skip_limit."
