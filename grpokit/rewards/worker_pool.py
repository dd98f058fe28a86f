"""Runs a reward in processes of its own, so that a crash or a hang costs one answer and not the run.

Each process is new ("spawn"), builds the reward by its name, and has a pipe of its own: a killed process holds no lock
and takes no other's answer with it. The portions of samples do not depend on the number of processes, so neither order
nor scores do.
"""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from grpokit import registry
from grpokit.errors import GrpokitError, RewardError, UsageError, typed_line
from grpokit.registry.specs import RewardSpec
from grpokit.rewards.scoring import RewardTerm, score
from grpokit.rewards.submission import Pending, Portion, by_group
from grpokit.rewards.worker_supervisor import Worker
from grpokit.types import Sample

_Jobs: TypeAlias = "queue.SimpleQueue[tuple[list[int], list[Sample], Future[Portion]] | None]"


class PooledReward:
    """A reward that runs in worker processes.

    A script that makes one keeps its own code under `if __name__ == "__main__":`, as always with "spawn".

    Args:
        use: a plugin's name for the reward, or "package.module:function".
        params: for its factory.
        workers: how many processes.
        timeout: seconds that one call may take before its process is ended; None: any time.
        per_sample: whether a call gets one row; else it gets a whole group. By default what the plugin's spec says,
            and whole groups for a reward without a spec.

    Raises:
        UsageError: numbers out of range.
    """

    def __init__(
        self,
        use: str,
        params: Mapping[str, Any] | None = None,
        *,
        workers: int = 1,
        timeout: float | None = None,
        per_sample: bool | None = None,
    ) -> None:
        if workers < 1:
            raise UsageError(f"workers must be at least 1, got {workers}.")
        if timeout is not None and not timeout > 0:
            raise UsageError(f"reward_timeout must be above 0 seconds, got {timeout}.")
        self.use, self.params, self.workers, self.timeout = use, dict(params or {}), workers, timeout
        spec = registry.spec_of("reward", use)
        announced = isinstance(spec, RewardSpec) and spec.per_sample
        self.per_sample = announced if per_sample is None else per_sample
        self._jobs: _Jobs = queue.SimpleQueue()
        self._threads: list[_Thread] = []

    def start(self) -> None:
        """Start the processes and wait until the reward stands in one of them.

        Raises:
            PluginError, UsageError: it cannot be built, or the machine has no room for so many processes.
        """
        if self._threads:
            return
        jobs: _Jobs = queue.SimpleQueue()
        threads: list[_Thread] = []
        try:
            for _ in range(self.workers):
                threads.append(_Thread(jobs, Worker(self.use, self.params, self.timeout)))
            threads[0].worker.ready()
        except BaseException:
            for thread in threads:
                thread.worker.end()
            for thread in threads:
                thread.worker.join()
            raise
        for thread in threads:
            thread.start()
        self._jobs, self._threads = jobs, threads
        atexit.register(self.close)  # before multiprocessing's own end, which would wait for a reward that hangs

    def submit(self, samples: Sequence[Sample]) -> Pending:
        """Hand out samples and return at once."""
        self.start()
        futures: list[Future[Portion]] = []
        for rows in self._portions(samples):
            futures.append(Future())
            self._jobs.put((rows, [samples[row] for row in rows], futures[-1]))
        return Pending(futures)

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Raises:
            RewardError: the reward failed on a row, which is named, or gave it something else than a number.
        """
        column = score([RewardTerm(name=self.use, reward=self)], samples).matrix[:, 0].tolist()
        return [float(x) for x in column]

    def close(self) -> None:
        """End the processes; a later call starts new ones."""
        atexit.unregister(self.close)
        for thread in self._threads:
            self._jobs.put(None)
            thread.worker.end()
        for thread in self._threads:
            thread.join(timeout=5)
            thread.worker.join()
        self._threads = []

    def _portions(self, samples: Sequence[Sample]) -> list[list[int]]:
        if self.per_sample:
            return [[row] for row in range(len(samples))]
        return by_group(samples)


class _Thread(threading.Thread):
    """Hands portions to one process. A daemon, so that a reward that hangs cannot keep the program from ending."""

    def __init__(self, jobs: _Jobs, worker: Worker) -> None:
        super().__init__(daemon=True)
        self.jobs, self.worker = jobs, worker

    def run(self) -> None:
        while True:
            job = self.jobs.get()
            if job is None:
                return
            self._work(*job)
            del job  # frees the samples before it waits for the next ones

    def _work(self, rows: list[int], samples: list[Sample], future: Future[Portion]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self.worker.ask(rows, samples))
        except GrpokitError as error:
            future.set_result(Portion(rows=rows, error=error))
        except BaseException as error:  # or the caller would wait for ever
            future.set_result(
                Portion(rows=rows, error=RewardError(f"its worker's thread failed: {typed_line(error)}."))
            )
