"""Runs a reward in its own processes, so a crash or a hang costs one answer and not the run.

Each process is new ("spawn"), builds the reward by its name, and has its own pipe: a killed process holds no lock
and takes no other's answer with it. The portions of samples do not depend on the number of processes, so neither order
nor scores do. What happens inside a process is in `inside_worker`.
"""

from __future__ import annotations

import atexit
import codecs
import json
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from grpokit import registry
from grpokit.errors import PluginError, UsageError, error_line
from grpokit.registry.specs import RewardSpec
from grpokit.rewards.inside_worker import serve
from grpokit.rewards.remote import RewardElsewhere, ScoreRequest
from grpokit.rewards.submission import Portion, from_message
from grpokit.types import Sample

_SPAWN = multiprocessing.get_context("spawn")


class PooledReward(RewardElsewhere):
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
        super().__init__(use, params)
        if workers < 1:
            raise UsageError(f"workers must be at least 1, got {workers}.")
        if timeout is not None and not timeout > 0:
            raise UsageError(f"reward_timeout must be above 0 seconds, got {timeout}.")
        self.workers, self.timeout = workers, timeout
        spec = registry.spec_of("reward", use)
        announced = isinstance(spec, RewardSpec) and spec.per_sample
        self.per_sample = announced if per_sample is None else per_sample
        self._processes: list[_Worker] = []

    def connect(self) -> list[ScoreRequest]:
        """Start the processes and wait until one of them has built the reward.

        Raises:
            PluginError, UsageError: it cannot be built, or the machine has no room for so many processes.
        """
        atexit.register(self.close)  # before multiprocessing's own end, which would wait for a reward that hangs
        for _ in range(self.workers):
            self._processes.append(_Worker(self.use, self.params, self.timeout))
        self._processes[0].ready()
        return [process.ask for process in self._processes]

    def disconnect(self) -> None:
        """End the processes."""
        atexit.unregister(self.close)
        for process in self._processes:
            process.end()
        self._processes = []

    def portions(self, samples: Sequence[Sample]) -> list[list[int]]:
        """Single rows, or those of each group."""
        return [[row] for row in range(len(samples))] if self.per_sample else super().portions(samples)


class _Worker:
    """One process, and the one that takes its place when it is lost.

    Raises:
        UsageError: the machine has no room for another process.
    """

    def __init__(self, use: str, params: Mapping[str, Any], timeout: float | None) -> None:
        self.use, self.params, self.timeout = use, params, timeout
        self.ended = False
        self._begin()

    def _begin(self) -> None:
        try:
            pipe, theirs = _SPAWN.Pipe()
            printed, prints = _SPAWN.Pipe(duplex=False)
            process = _SPAWN.Process(target=serve, args=(theirs, prints, self.use, self.params), daemon=True)
            resource_tracker.ensure_running()  # whose own start would let Ctrl-C through, which goes to all processes
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the process ignores it
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except OSError as error:
            raise UsageError(
                f"a worker process for '{self.use}' cannot be started ({error_line(error)}). Set fewer `workers`."
            ) from error
        theirs.close()  # else its end would not be seen
        prints.close()
        self.output = threading.Thread(target=_show, args=(printed,), daemon=True)
        self.output.start()
        self.pipe, self.process, self.built = pipe, process, False
        self.number = 0  # of the last request
        if self.ended:  # by another thread meanwhile
            self._kill()

    def ready(self) -> None:
        """Wait until the reward is built.

        Raises:
            GrpokitError: what building it raised.
            PluginError: the process died before.
        """
        try:
            self._wait_until_built()
        except (EOFError, OSError, ValueError):
            raise PluginError(
                f"The reward '{self.use}' {self._loss()} before it was built. A script needs its own code under "
                '`if __name__ == "__main__":`.'
            ) from None

    def _wait_until_built(self) -> None:
        if not self.built:
            error = self._received([], None).error
            if error is not None:
                raise error
            self.built = True

    def ask(self, rows: Sequence[int], samples: list[Sample]) -> Portion:
        """Score the samples of some rows.

        Raises:
            UsageError: the samples cannot be sent, or the reward cannot be built again.
        """
        try:
            data = pickle.dumps((rows, samples))  # by value: multiprocessing's own would move tensors to shared memory
        except Exception as error:  # a sample may hold anything
            raise UsageError(
                f"samples cannot be sent to its worker process ({error_line(error)}). Remove `workers`, so that it "
                "runs in the run's own process."
            ) from error
        try:
            if self.process.exitcode is not None:  # it died while it had nothing to do
                self._begin()
            self._wait_until_built()
            self.number += 1
            self.pipe.send_bytes(json.dumps(self.number).encode())
            self.pipe.send_bytes(data)
            return self._received(rows, self.timeout)
        except TimeoutError:
            self._kill()
            return Portion(rows=rows, failure=f"gave no answer within {self.timeout:g} s (reward_timeout)")
        except (EOFError, OSError, ValueError):
            return Portion(rows=rows, failure=self._loss())

    def _received(self, rows: Sequence[int], timeout: float | None) -> Portion:
        """The answer to the last request, or whether the reward is built.

        Raises:
            EOFError, OSError, ValueError: the process has ended, or the pipe is closed or disturbed.
            TimeoutError: there is none after so many seconds.
        """
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            while not self.pipe.poll(max(0.0, min(0.2, end - time.monotonic()))):
                if self.process.exitcode is not None and not self.pipe.poll():  # a child of its may hold the pipe open
                    raise EOFError
                if time.monotonic() >= end:
                    raise TimeoutError
            process, number, message = json.loads(self.pipe.recv_bytes())
            if (process, number) == (self.process.pid, self.number):
                return from_message(rows, message)

    def _loss(self) -> str:
        """How a process was lost that can no longer be asked."""
        self.process.join(timeout=5)
        self._kill()  # it may leave behind what its reward has started
        code = self.process.exitcode or 0
        ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"lost its worker process, which {ended},"

    def end(self) -> None:
        """End the process for good, whatever it is doing, and show the rest of what it printed."""
        self.ended = True
        self._kill()
        self.output.join(timeout=1)

    def _kill(self) -> None:
        """End the process, and what its reward has started, such as another program that hangs."""
        assert self.process.pid is not None
        with suppress(ProcessLookupError, PermissionError):  # there is nothing left, or it leads no group yet
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join(timeout=5)


def _show(printed: Connection) -> None:
    """Show what a process prints on the run's stderr, until it and all that it started have ended."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    with printed:
        while data := os.read(printed.fileno(), 1 << 16):
            with suppress(OSError, ValueError, AttributeError):  # a stderr that is closed, or none
                sys.stderr.write(decode(data))
                sys.stderr.flush()
