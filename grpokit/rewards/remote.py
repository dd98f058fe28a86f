"""What rewards that score elsewhere have in common: threads that hand portions of samples to processes or services."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeAlias

from grpokit.errors import GrpokitError, RewardError, error_line
from grpokit.rewards.scoring import score_samples
from grpokit.rewards.submission import Pending, Portion, by_group
from grpokit.rewards.terms import RewardTerm
from grpokit.types import Sample

ENDING = threading.Event()
"""Set once the run is to end: services that do not answer are then not retried, so it can save in time."""

ScoreRequest: TypeAlias = Callable[[list[int], list[Sample]], Portion]
"""Has the samples of some rows scored. A `GrpokitError` that it raises stops the run, whatever `on_error` says."""


_Job: TypeAlias = tuple[list[int], list[Sample], Future[Portion]]


class RewardElsewhere(ABC):
    """A reward that is scored elsewhere, by what `connect` connects to; each call has the samples of one group.

    Each that can be asked has a thread, which takes the next call that nobody has taken. The threads are daemons, so
    that one that waits for an answer cannot keep the program from ending.

    Args:
        use: a plugin's name for the reward, or "package.module:function".
        params: for its factory.
    """

    def __init__(self, use: str, params: Mapping[str, Any] | None = None) -> None:
        self.use, self.params = use, dict(params or {})
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    @abstractmethod
    def connect(self) -> Sequence[ScoreRequest]:
        """Wait until samples can be scored; returns a function for each request that may be made at a time.

        Raises:
            UsageError: they cannot.
        """

    @abstractmethod
    def disconnect(self) -> None:
        """Release all that `connect` has begun, even if it raised; callers that still wait get no answer."""

    def start(self) -> None:
        """Wait until samples can be scored.

        Raises:
            UsageError: they cannot.
        """
        if self._threads:
            return
        try:
            asks = self.connect()
        except BaseException:
            self.disconnect()
            raise
        self._jobs = queue.SimpleQueue()
        self._threads = [threading.Thread(target=_work, args=(ask, self._jobs), daemon=True) for ask in asks]
        for thread in self._threads:
            thread.start()

    def submit(self, samples: Sequence[Sample]) -> Pending:
        """Hand out samples and return at once."""
        self.start()
        futures: list[Future[Portion]] = []
        for rows in self.portions(samples):
            future: Future[Portion] = Future()
            futures.append(future)
            self._jobs.put((rows, [samples[row] for row in rows], future))
        return Pending(futures)

    def portions(self, samples: Sequence[Sample]) -> list[list[int]]:
        """The rows of each call."""
        return by_group(samples)

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Raises:
            RewardError: the reward failed on a row, which is named, or gave it something else than a number.
        """
        term = RewardTerm(name=self.use or "reward", reward=self)
        column = score_samples([term], samples).matrix[:, 0]
        return [float(x) for x in column.tolist()]

    def close(self) -> None:
        """Cancel what nobody has begun, and disconnect; a later call connects again."""
        threads, self._threads = self._threads, []
        with suppress(queue.Empty):
            while job := self._jobs.get_nowait():
                job[2].cancel()
        if threads:
            for _ in threads:
                self._jobs.put(None)
            self.disconnect()
            end = time.monotonic() + 5
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))


def _work(ask: ScoreRequest, jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        rows, samples, future = job
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(ask(rows, samples))
            except GrpokitError as error:
                future.set_result(Portion(rows=rows, error=error))
            except BaseException as error:  # or the caller would wait for ever
                wrong = RewardError(f"it could not be asked: {error_line(error)}.")
                future.set_result(Portion(rows=rows, error=wrong))
        del job, samples, future  # frees the samples before it waits for the next ones
