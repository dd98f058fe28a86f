"""Rewards that score elsewhere: in worker processes, on other machines, behind a service.

Such a reward has `submit`, which hands samples out and returns at once, and `close`. All of them work at the same time
as the rewards of the run's own process. Their answers come in portions: some rows, and
their scores or how they failed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from grpokit.errors import GrpokitError, shown
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
    """

    rows: Sequence[int]
    values: Any = None
    failure: str = ""
    error: GrpokitError | None = None


LATE = "(reward_timeout)"
"""The end of a failure that cost the whole of this time."""


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
    """A reward that scores elsewhere. It may stand wherever a callable reward may, and need not be callable."""

    def submit(self, samples: Sequence[Sample]) -> Pending:
        """Hand out samples and return at once."""

    def close(self) -> None:
        """Release processes and connections; called when the run ends."""


@runtime_checkable
class Placed(Submits, Protocol):
    """A reward at the place that a config's `placement` names."""

    def start(self) -> None:
        """Wait until samples can be scored there.

        Raises:
            UsageError: they cannot.
        """


REORDERED = (
    "changed the order or the number of the samples in its list, so its scores may belong to other rows; "
    "expected one score per sample, in the order of the list. Sort a copy: `sorted(samples, key=...)`"
)


def reordered(samples: Sequence[Sample], order: Sequence[Sample]) -> bool:
    """Whether a list of samples is no longer in the order in which a reward got it."""
    return len(samples) != len(order) or any(a is not b for a, b in zip(samples, order, strict=True))


def by_group(samples: Sequence[Sample]) -> list[list[int]]:
    """The rows of each group, the groups in the order of their first row."""
    groups: dict[int, list[int]] = {}
    for row, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(row)
    return list(groups.values())


def in_words(rows: Sequence[int], samples: Sequence[Sample]) -> str:
    """Rows for a message.

    >>> from grpokit import Prompt
    >>> in_words([3, 4], [Sample(prompt=Prompt(text="a cat"), output="", group=0)] * 5)
    "rows 3-4 (prompt 'a cat')"
    """
    span = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]}-{rows[-1]}"
    return f"{span} (prompt {samples[rows[0]].prompt.text!r})"


def meta_keys(error: BaseException, samples: Sequence[Sample]) -> str:
    """After a KeyError, the keys of the first prompt whose meta has not that one; else empty."""
    if not isinstance(error, KeyError) or not error.args or not isinstance(error.args[0], str):
        return ""
    prompts = (sample.prompt for sample in samples if error.args[0] not in sample.prompt.meta)
    return next((f", and the meta of {shown(p.text)} has {shown(dict(p.meta))}" for p in prompts), "")
