"""Rewards that score elsewhere: in worker processes, on other machines, behind a service.

Such a reward has `submit`, which hands samples out and returns at once, and `close`. All of them work at the same time
as the rewards of the run's own process. Their answers come in portions: some rows, and
their scores or how they failed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from grpokit import errors
from grpokit.errors import GrpokitError, reword
from grpokit.types import Sample


@dataclass(frozen=True, kw_only=True)
class Portion:
    """The rows of one call with their scores, or with how the call failed.

    Attributes:
        rows: their places among the samples.
        values: one number per row, NaN where the reward cannot score it; None where the call failed.
        failure: how the call failed, in words that follow the reward's name ("lost its connection"); empty where
            it did not. The reward's `on_error` decides what that means.
        error: what stops the run whatever `on_error` says: a wrong parameter, target or sample, or an invalid
            answer.
        cause: the exception behind a failure, where it was raised in this process.
    """

    rows: Sequence[int]
    values: Any = None
    failure: str = ""
    error: GrpokitError | None = None
    cause: BaseException | None = None


def to_message(portion: Portion) -> list[Any]:
    """A portion without its rows, to be sent as JSON: the caller unpickles nothing that a reward makes."""
    error = portion.error and [type(reword(portion.error, "")).__name__, str(portion.error), portion.error.page]
    return [portion.values, portion.failure, error]


def from_message(rows: Sequence[int], message: Sequence[Any]) -> Portion:
    """The portion of some rows that `to_message` took apart.

    Raises:
        ValueError, TypeError: it is not a message.
    """
    values, failure, error = message
    if error is not None:
        name, text, page = error
        kind = vars(errors).get(name)
        if not (isinstance(kind, type) and issubclass(kind, GrpokitError)):
            raise ValueError(f"no error of grpokit is called {name!r}")
        if not re.fullmatch(r"[a-z0-9/-]*(#[a-z0-9-]+)?", page):
            raise ValueError("the page of an error is not a name of one")
        error = kind(text, page=page)
    return Portion(rows=rows, values=values, failure=failure, error=error)


class Pending:
    """The scores that are being computed for some samples; iterating waits for them, in the order of `futures`.

    Args:
        futures: one for each portion; together the portions hold each row once. A future that raises fails the rows
            of its portion and of those after it.
    """

    def __init__(self, futures: Sequence[Future[Portion]]) -> None:
        self._futures = futures
        self._start = self._last = time.perf_counter()
        for future in futures:
            future.add_done_callback(self._note)

    def __iter__(self) -> Iterator[Portion]:
        """Yield the portions."""
        for future in self._futures:
            yield future.result()

    @property
    def seconds(self) -> float:
        """From handing out the samples to the last answer so far."""
        return self._last - self._start

    def cancel(self) -> None:
        """Cancel the portions that have not begun."""
        for future in self._futures:
            future.cancel()

    def _note(self, future: Future[Portion]) -> None:
        self._last = time.perf_counter()


@runtime_checkable
class Submits(Protocol):
    """A reward that scores elsewhere. It may be used wherever a callable reward may, and need not be callable."""

    def submit(self, samples: Sequence[Sample]) -> Pending:
        """Hand out samples and return at once."""

    def close(self) -> None:
        """Release processes and connections; called when the run ends."""


@runtime_checkable
class Versioned(Submits, Protocol):
    """A reward that scores in an environment of its own, and tells what is installed there.

    Attributes:
        versions: package -> version, once it is started. A run notes them, and says on a resume what has changed.
    """

    versions: Mapping[str, str]


def by_group(samples: Sequence[Sample]) -> list[list[int]]:
    """The rows of each group, the groups in the order of their first row."""
    groups: dict[int, list[int]] = {}
    for row, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(row)
    return list(groups.values())
