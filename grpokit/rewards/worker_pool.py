"""Runs a reward in processes of its own, so that a crash or a hang costs one answer and not the run.

Each process is started afresh ("spawn"), builds the reward by its name, and has a pipe to itself: one that is killed
takes no lock and no other's answer with it. Samples are handed out in the same portions whatever the number of
processes, so neither order nor scores depend on it.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any, TypeAlias

from grpokit import errors, registry
from grpokit.errors import GrpokitError, PluginError, RewardError, UsageError
from grpokit.registry.specs import RewardSpec
from grpokit.rewards.validation import checked
from grpokit.rewards.worker_process import one_line, serve
from grpokit.types import Sample

_SPAWN = multiprocessing.get_context("spawn")
_TRIES = 3  # processes in a row that may die before they have taken a portion

_Jobs: TypeAlias = "queue.SimpleQueue[tuple[list[int], list[Sample], Future[Portion]] | None]"


@dataclass(frozen=True, kw_only=True)
class Portion:
    """The rows of one call, and what came of it.

    Attributes:
        rows: their places among the samples.
        values: what the reward returned; None where it failed.
        failure: how it failed, for a message; empty where it did not.
        error: what cannot be skipped: a wrong parameter, target or sample, or an answer that no reward may give.
    """

    rows: Sequence[int]
    values: Any = None
    failure: str = ""
    error: GrpokitError | None = None


class Pending:
    """The answers that are being worked out for some samples; iterating waits for them, in the samples' order.

    Args:
        futures: one for each portion.
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
        """Call off what nobody has begun."""
        for future in self._futures:
            future.cancel()

    def _note(self, future: Future[Portion]) -> None:
        self._last = time.perf_counter()


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
                threads.append(_Thread(jobs, _Worker(self.use, self.params, self.timeout)))
            threads[0].worker.ready()
        except BaseException:
            for thread in threads:
                thread.worker.end()
            for thread in threads:
                thread.worker.process.join(timeout=5)
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
        pending = self.submit(samples)
        scores = [float("nan")] * len(samples)
        try:
            for portion in pending:
                if portion.error is not None:
                    raise portion.error
                if portion.failure:
                    raise RewardError(
                        f"The reward '{self.use}' {portion.failure} on {in_words(portion.rows, samples)}."
                    )
                part = [samples[row] for row in portion.rows]
                for row, value in zip(portion.rows, checked(self.use, portion.values, part, portion.rows), strict=True):
                    scores[row] = value
        finally:
            pending.cancel()
        return scores

    def close(self) -> None:
        """End the processes; a later call starts new ones."""
        atexit.unregister(self.close)
        for thread in self._threads:
            self._jobs.put(None)
            thread.worker.end()
        for thread in self._threads:
            thread.join(timeout=5)
            thread.worker.process.join(timeout=5)
        self._threads = []

    def _portions(self, samples: Sequence[Sample]) -> list[list[int]]:
        if self.per_sample:
            return [[row] for row in range(len(samples))]
        return by_group(samples)


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


class _Thread(threading.Thread):
    """Hands portions to one process. A daemon, so that a reward that hangs cannot keep the program from ending."""

    def __init__(self, jobs: _Jobs, worker: _Worker) -> None:
        super().__init__(daemon=True)
        self.jobs, self.worker = jobs, worker

    def run(self) -> None:
        while True:
            job = self.jobs.get()
            if job is None:
                return
            self._work(*job)
            del job  # lets go of the samples before it waits for the next ones

    def _work(self, rows: list[int], samples: list[Sample], future: Future[Portion]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self.worker.ask(rows, samples))
        except GrpokitError as error:
            future.set_result(Portion(rows=rows, error=error))
        except Exception as error:  # for whoever waits, who would else wait for ever
            future.set_exception(error)


class _Worker:
    """One process, and the one that takes its place when it is lost."""

    def __init__(self, use: str, params: Mapping[str, Any], timeout: float | None) -> None:
        self.use, self.params, self.timeout = use, params, timeout
        self.ended = False
        self._ending = threading.Lock()  # a process that is begun while another thread ends this would stay behind
        self._begin()

    def _begin(self) -> None:
        with self._ending:
            if self.ended:
                return
            try:
                pipe, theirs = _SPAWN.Pipe()
                process = _SPAWN.Process(target=serve, args=(theirs, self.use, self.params), daemon=True)
                with _interrupts_held_back():
                    process.start()
            except OSError as error:
                raise UsageError(
                    f"a worker process for '{self.use}' cannot be started ({one_line(error)}). Set fewer `workers`."
                ) from error
            theirs.close()  # else its end would not be seen
            self.pipe, self.process, self.built = pipe, process, False

    def ready(self) -> None:
        """Wait until the reward is built.

        Raises:
            GrpokitError: what building it raised.
            PluginError: the process died meanwhile.
        """
        end = self._lost_while_building()
        if end:
            raise PluginError(
                f"The worker process of the reward '{self.use}' {end} before the reward was built. A script needs its "
                'own code under `if __name__ == "__main__":`.'
            )

    def _lost_while_building(self) -> str:
        """Wait until the reward is built; returns how the process ended meanwhile, or nothing."""
        if self.built:
            return ""
        try:
            state, *said = self.pipe.recv()
        except (EOFError, OSError):
            return self._how_it_ended()
        if state == "failed":
            raise _error(*said)
        self.built = True
        return ""

    def ask(self, rows: Sequence[int], samples: list[Sample]) -> Portion:
        """Score the samples of some rows.

        Raises:
            UsageError: a parameter, a target or a sample is wrong.
            RewardError: it returned something that no reward may return.
        """
        try:
            data = pickle.dumps(samples)  # by value: multiprocessing's own would move tensors to shared memory
        except Exception as error:  # of whatever a sample holds
            raise UsageError(
                f"samples cannot be sent to its worker process ({one_line(error)}). Take `workers` out, so that it "
                "runs in the run's own process."
            ) from error
        for _ in range(_TRIES):
            if self.process.exitcode is not None:  # it died while it had nothing to do
                self._begin()
            end = self._lost_while_building()
            if end and not self.ended:
                continue
            late = threading.Event()
            timer = threading.Timer(self.timeout, self._stop, (late,)) if self.timeout else None
            taken, answer = False, None
            if timer:
                timer.start()
            try:
                self.pipe.send_bytes(data)
                taken = self.pipe.recv() == "taken"
                answer = self.pipe.recv_bytes()
            except (EOFError, OSError):  # its end
                pass
            finally:
                if timer:
                    timer.cancel()
                    timer.join()
            if late.is_set():
                self._how_it_ended()
                return Portion(rows=rows, failure=f"gave no answer within {self.timeout:g} s (reward_timeout)")
            if answer is not None:
                return _opened(rows, answer)
            end = self._how_it_ended()
            if taken or self.ended:
                return Portion(rows=rows, failure=f"lost its worker process, which {end},")
        return Portion(rows=rows, failure=f"lost {_TRIES} worker processes before they began; the last {end},")

    def end(self) -> None:
        """End the process for good, whatever it is doing."""
        with self._ending:
            self.ended = True
            self._kill()

    def _stop(self, late: threading.Event) -> None:
        late.set()
        self._kill()

    def _kill(self) -> None:
        """End the process, and what its reward has started, such as another program that hangs."""
        if self.process.exitcode is None and self.process.pid is not None:
            with suppress(ProcessLookupError):  # it has not come so far as to lead a group
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def _how_it_ended(self) -> str:
        """Wait for the end of a process that says nothing any more; returns how it ended."""
        self.process.join(timeout=5)
        self._kill()  # one that closed its pipe and lives on
        self.process.join()
        code = self.process.exitcode or 0
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C goes to all processes; one that is started in here cannot die of it before it knows to ignore it."""
    resource_tracker.ensure_running()  # whose own start would let them through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _opened(rows: Sequence[int], answer: bytes) -> Portion:
    try:
        state, *said = pickle.loads(answer)  # noqa: S301 (of our own process)
    except Exception as error:  # of whatever the reward made
        raise RewardError(
            f"what it returned cannot be read in the run's process ({one_line(error)}); expected one number per sample."
        ) from error
    if state == "values":
        return Portion(rows=rows, values=said[0])
    if state == "failure":
        return Portion(rows=rows, failure=said[0])
    raise _error(*said)


def _error(kind: str, text: str) -> GrpokitError:
    """An error of grpokit's own, as the worker process raised it."""
    found = getattr(errors, kind, UsageError)
    return found(text)
