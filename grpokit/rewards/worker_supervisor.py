"""The run's end of one worker process: starts it, asks it, and replaces it when it is lost.

Whatever goes wrong in the process (a crash, a hang, a closed pipe, bytes that are not an answer) becomes a `Portion`
that says how its rows failed. What happens inside the process is in `grpokit.rewards.worker_process`.
"""

from __future__ import annotations

import codecs
import json
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from grpokit.errors import PluginError, UsageError, typed_line
from grpokit.rewards.answers import check_built, portion
from grpokit.rewards.submission import LATE, Portion
from grpokit.rewards.worker_process import PIPE_CLOSED, serve
from grpokit.types import Sample

_SPAWN = multiprocessing.get_context("spawn")
_TRIES = 3  # processes in a row that may die before they have taken a portion
_BEAT = 0.2  # seconds between two looks at a process that is silent
_MOST_BYTES = 1 << 26  # of a message

MOST_OUTPUT = 1_000_000
"""How many bytes of what a worker process and those that replace it print are shown."""


class Worker:
    """One process, and the one that takes its place when it is lost.

    Args:
        use: the reward's name.
        params: for its factory.
        timeout: seconds that one call may take; None: any time.

    Raises:
        UsageError: the machine has no room for another process.
    """

    def __init__(self, use: str, params: Mapping[str, Any], timeout: float | None) -> None:
        self.use, self.params, self.timeout = use, params, timeout
        self.ended = False
        self._output = _Output(use)
        self._ending = threading.Lock()  # a process that is begun while another thread ends this would stay behind
        self._begin()

    def _begin(self) -> None:
        with self._ending:
            if self.ended:
                return
            try:
                pipe, theirs = _SPAWN.Pipe()
                printed, prints = _SPAWN.Pipe(duplex=False)
                process = _SPAWN.Process(target=serve, args=(theirs, prints, self.use, self.params), daemon=True)
                with _interrupts_held_back():
                    process.start()
            except OSError as error:
                raise UsageError(
                    f"a worker process for '{self.use}' cannot be started ({typed_line(error)}). Set fewer `workers`."
                ) from error
            theirs.close()  # else its end would not be seen
            prints.close()
            self._output.show(printed)
            self.pipe, self.process, self.built, self.calls = pipe, process, False, 0

    def ready(self) -> None:
        """Wait until the reward is built.

        Raises:
            GrpokitError: what building it raised.
            PluginError: the process died before.
        """
        loss = self._lost_while_building()
        if loss:
            raise PluginError(
                f"The reward '{self.use}' {loss} before it was built. A script needs its own code under "
                '`if __name__ == "__main__":`.'
            )

    def _lost_while_building(self) -> str:
        """Wait until the reward is built; returns how the process was lost, or nothing."""
        if self.built:
            return ""
        try:
            message = self._receive()
        except (EOFError, OSError, ValueError) as error:
            return self._loss(error)
        check_built(message)
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
        except Exception as error:  # a sample may hold anything
            raise UsageError(
                f"samples cannot be sent to its worker process ({typed_line(error)}). Remove `workers`, so that it "
                "runs in the run's own process."
            ) from error
        loss = ""
        for _ in range(_TRIES):
            if self.process.exitcode is not None:  # it died while it had nothing to do
                self._begin()
            loss = self._lost_while_building()
            if loss and not self.ended:
                continue
            began = False
            self.calls += 1
            with self._time_limit() as late:
                try:
                    self.pipe.send_bytes(data)
                    self._receive()
                    began = True
                    return portion(rows, self._receive())
                except (EOFError, OSError, ValueError) as error:
                    lost_by = error
            loss = self._loss(lost_by)
            if late.is_set():
                return Portion(rows=rows, failure=f"gave no answer within {self.timeout:g} s {LATE}")
            if began or self.ended:
                return Portion(rows=rows, failure=loss)
        return Portion(rows=rows, failure=f"{loss.rstrip(',')}, {_TRIES} times in a row before it began,")

    def _receive(self) -> list[Any]:
        """The next message of this call: its kind and its content.

        Raises:
            EOFError, ConnectionError: the process has ended, or the pipe is closed.
            OSError, ValueError: the bytes are not a message.
        """
        while not self.pipe.poll(_BEAT):  # a program that the reward forked may hold the pipe open
            if self.process.exitcode is not None and not self.pipe.poll():
                raise EOFError
        message = json.loads(self.pipe.recv_bytes(_MOST_BYTES))
        if not isinstance(message, list) or len(message) < 2 or message[0] != self.calls:
            raise ValueError("not a message of this call")
        return message[1:]

    def _loss(self, error: Exception) -> str:
        """End a process that can no longer be asked; returns how it was lost, for a message."""
        closed = isinstance(error, (EOFError, ConnectionError))
        if closed:
            self.process.join(timeout=5)
        alive = self.process.exitcode is None
        self._kill_group()  # a process may die and leave behind what its reward has started
        self.process.kill()
        self.process.join()
        code = self.process.exitcode or 0
        if not closed:
            return "wrote bytes that are not an answer into the pipe of its worker process"
        if alive or code == PIPE_CLOSED:
            return "closed the pipe of its worker process"
        ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"lost its worker process, which {ended},"

    @contextmanager
    def _time_limit(self) -> Iterator[threading.Event]:
        """Ends the process when a call takes too long; the event then is set."""
        late = threading.Event()
        if self.timeout is None:
            yield late
            return

        def stop() -> None:
            late.set()
            self._kill()

        timer = threading.Timer(self.timeout, stop)
        timer.start()
        try:
            yield late
        finally:
            timer.cancel()
            timer.join()

    def end(self) -> None:
        """End the process for good, whatever it is doing."""
        with self._ending:
            self.ended = True
            self._kill()

    def join(self) -> None:
        """Wait until the process has ended, and until what it printed has been shown."""
        self.process.join(timeout=5)
        self._output.join(timeout=1)

    def _kill(self) -> None:
        """End the process, and what its reward has started, such as another program that hangs."""
        if self.process.exitcode is None:  # its number may belong to another by now
            self._kill_group()
        self.process.kill()

    def _kill_group(self) -> None:
        if self.process.pid is not None:
            with suppress(ProcessLookupError, PermissionError):  # there is nothing left, or it leads no group yet
                os.killpg(self.process.pid, signal.SIGKILL)


class _Output:
    """Shows what processes print on the run's stderr, up to a limit, so that no reward can fill a disk."""

    def __init__(self, use: str) -> None:
        self.use, self.left = use, MOST_OUTPUT
        self._threads: list[threading.Thread] = []

    def show(self, printed: Connection) -> None:
        """Show what comes, until the process and all that it started have ended."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._pass_on, args=(printed,), daemon=True)
        thread.start()
        self._threads.append(thread)

    def join(self, timeout: float) -> None:
        """Wait until all has been shown."""
        for thread in self._threads:
            thread.join(timeout)

    def _pass_on(self, printed: Connection) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        with printed:
            while data := os.read(printed.fileno(), 1 << 16):  # all is read: a full pipe would hold the reward up
                shown, self.left = data[: self.left], max(0, self.left - len(data))
                if not shown:
                    continue
                text = decode(shown)
                if not self.left:
                    text += f"\nThe reward '{self.use}' has printed {MOST_OUTPUT:,} bytes; the rest is not shown.\n"
                with suppress(OSError, ValueError, AttributeError):  # a stderr that is closed, or none
                    sys.stderr.write(text)
                    sys.stderr.flush()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C goes to all processes; one that is started in here cannot die of it before it knows to ignore it."""
    resource_tracker.ensure_running()  # whose own start would let them through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
