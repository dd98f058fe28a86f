"""Threads that hand portions of samples to whoever scores them elsewhere: a process, a service, a replica."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeAlias

from grpokit.errors import GrpokitError, RewardError, typed_line
from grpokit.rewards.submission import Pending, Portion
from grpokit.types import Sample

ENDING = threading.Event()
"""Set once the run was told to end: who does not answer then is not asked again, so that it can save in time."""

Ask: TypeAlias = Callable[[list[int], list[Sample]], Portion]
"""Has the samples of some rows scored. A `GrpokitError` that it raises stops the run, whatever `on_error` says."""


class Asking:
    """One thread for each that can be asked; each takes the next portion that nobody has taken.

    They are daemons, so that one that waits for an answer cannot keep the program from ending.

    Args:
        asks: one for each thread.
    """

    def __init__(self, asks: Sequence[Ask]) -> None:
        self._jobs: queue.SimpleQueue[tuple[list[int], list[Sample], Future[Portion]] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, args=(ask,), daemon=True) for ask in asks]
        for thread in self._threads:
            thread.start()

    def submit(self, portions: Sequence[list[int]], samples: Sequence[Sample]) -> Pending:
        """Hand out samples and return at once.

        Args:
            portions: of rows, which together hold each row once.
            samples: of all rows.
        """
        futures: list[Future[Portion]] = []
        for rows in portions:
            futures.append(Future())
            self._jobs.put((rows, [samples[row] for row in rows], futures[-1]))
        return Pending(futures)

    def close(self) -> None:
        """Let the threads end once all portions are taken."""
        for _ in self._threads:
            self._jobs.put(None)

    def join(self, timeout: float) -> None:
        """Wait for the threads.

        Args:
            timeout: seconds in all.
        """
        end = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _work(self, ask: Ask) -> None:
        while (job := self._jobs.get()) is not None:
            rows, samples, future = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(ask(rows, samples))
                except GrpokitError as error:
                    future.set_result(Portion(rows=rows, error=error))
                except BaseException as error:  # or the caller would wait for ever
                    future.set_result(
                        Portion(rows=rows, error=RewardError(f"it could not be asked: {typed_line(error)}."))
                    )
            del job, samples, future  # frees the samples before it waits for the next ones
