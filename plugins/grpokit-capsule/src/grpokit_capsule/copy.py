"""One process of a reward in a capsule, seen from the run, and the process that takes its place when it is lost.

Requests go to its stdin and answers come through a pipe of their own. What it prints goes to a log.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from grpokit import Portion, Sample
from grpokit.errors import PluginError, RewardError, UsageError, error_line, on_one_line
from grpokit_capsule import runner

_log = logging.getLogger(__name__)
_SILENT = 10.0  # seconds to wait for a reward that is being built without a word
_STANDING = 600.0  # seconds that building it may take at least
_ENDING = 2.0  # seconds
_PRINTED = 4 * 2**20  # bytes of what it prints, of which the last are kept
_LINE = 2**16  # bytes


class Copy:
    """A process that holds a reward.

    Args:
        use: the reward's name, for messages.
        python: the interpreter.
        order: what it builds (see `runner.build`).
        variables: its environment variables.
        timeout: seconds that a call may take.
        log: the file for what it prints.

    Raises:
        UsageError: it cannot be started.
    """

    def __init__(
        self,
        use: str,
        python: str,
        order: Mapping[str, Any],
        *,
        variables: Mapping[str, str],
        timeout: float,
        log: Path,
    ) -> None:
        self.use, self.python, self.order, self.variables = use, python, order, variables
        self.timeout, self.log = timeout, log
        self.versions: dict[str, str] = {}
        self._ended = False
        self._start()

    def _start(self) -> None:
        """Start a process that builds the reward."""
        self._late = False
        self._standing = False
        self._last_lines: deque[str] = deque(maxlen=3)
        answers, theirs = os.pipe()
        command = [self.python, "-u", "-I", runner.__file__, str(os.getpid()), str(theirs)]
        try:
            self._process = subprocess.Popen(
                command,
                env=self.variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs],
                start_new_session=True,
            )
        except OSError as error:
            os.close(answers)
            raise UsageError(f"The capsule of '{self.use}' cannot be started: {error_line(error)}.") from error
        finally:
            os.close(theirs)
        self._answers = os.fdopen(answers, "rb")
        with suppress(OSError):  # it has ended already, which `ready` notices
            runner.send(self._stdin, runner.to_bytes(self.order))
        self._printing = threading.Thread(target=self._keep_printed, args=(self._process,), daemon=True)
        self._printing.start()
        if self._ended:  # by another thread meanwhile
            self._kill()

    def ready(self) -> None:
        """Wait until the reward is built.

        Raises:
            PluginError: it cannot be built, or the process ended before.
        """
        if self._standing:
            return
        limit = max(self.timeout, _STANDING)
        waiting = threading.Timer(_SILENT, _log.warning, [f"Waiting for '{self.use}' to be built in its capsule"])
        waiting.start()
        try:
            with self._within(limit):
                reply = runner.receive(self._answers)
        except (EOFError, OSError, ValueError):
            loss = self._loss()
            if self._late:
                loss = f"was not built within {limit:g} s; a longer reward_timeout gives it more"
            raise PluginError(f"The reward '{self.use}' {loss.rstrip(',')}.", page="capsules") from None
        finally:
            waiting.cancel()
        if "error" in reply:
            self._kill()  # threads that it has started may keep it from ending
            self._process.wait()
            advice = _advice(reply["missing"], self.order["module"])
            wrong = f"The reward '{self.use}' cannot be built in its capsule: {reply['error']}. {advice}".rstrip()
            raise PluginError(wrong, page="capsules")
        self.versions = reply["versions"]
        self._standing = True

    def ask(self, rows: list[int], samples: list[Sample]) -> Portion:
        """Have the samples of some rows scored.

        Raises:
            PluginError: the reward cannot be built again.
            UsageError: the samples cannot be sent.
        """
        if self._process.poll() is not None:
            self._close_pipes()
            self._start()
        self.ready()
        try:
            request = runner.to_bytes(_request(samples))
        except TypeError as error:
            raise UsageError(
                f"samples cannot be sent to its capsule: {error}. Remove `placement`, so that it runs in the run's "
                "own process."
            ) from error
        except Exception as error:  # such as a picture whose file cannot be read
            return Portion(rows=rows, failure=f"could not be sent its samples: {error_line(error)},", cause=error)
        try:
            with self._within(self.timeout):
                runner.send(self._stdin, request)
                reply = runner.receive(self._answers)
        except (EOFError, OSError, ValueError):
            loss = self._loss()
            if self._late:
                loss = f"gave no answer within {self.timeout:g} s (reward_timeout)"
            return Portion(rows=rows, failure=loss)
        if "error" in reply:
            return Portion(rows=rows, error=RewardError(reply["error"], page="guards#while-it-runs"))
        return Portion(rows=rows, values=reply.get("values"), failure=reply.get("failure", ""))

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """Inside, the process is ended once the time is over, so that nothing waits for it any longer."""

        def end() -> None:
            self._late = True
            self._kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            if self._late:  # also where the answer came at the last moment: the next call needs another process
                self._process.wait()

    def _loss(self) -> str:
        """How a process was lost."""
        try:
            code = self._process.wait(timeout=_ENDING)
        except subprocess.TimeoutExpired:  # it has closed its pipes, and runs on
            self._kill()
            code = self._process.wait()
        self._printing.join(timeout=1)
        ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        words = on_one_line(" ".join(self._last_lines), most=200)
        printed = f" and printed last: {words} (all of it is in {self.log})," if words else ""
        return f"lost its capsule's process, which {ended},{printed}"

    def end(self) -> None:
        """End the process for good, whatever it is doing."""
        self._ended = True
        self._kill()
        self._process.wait()
        self._printing.join(timeout=1)
        self._close_pipes()

    def _close_pipes(self) -> None:
        self._answers.close()
        with suppress(OSError):  # what it holds back has no reader any more
            self._stdin.close()

    def _kill(self) -> None:
        if self._process.poll() is None:
            runner.end(self._process.pid)

    def _keep_printed(self, process: subprocess.Popen[bytes]) -> None:
        """Write what a process prints into the log; where that fails, it is still read."""
        assert process.stdout is not None
        last_lines = self._last_lines
        with suppress(OSError):
            self.log.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(self.log, maxBytes=_PRINTED, backupCount=1, encoding="utf-8", delay=True)
        handler.handleError = lambda record: None  # type: ignore[method-assign]  # such as a full disk
        while line := process.stdout.readline(_LINE):
            text = line.decode(errors="replace").rstrip()
            last_lines.append(text)
            handler.emit(logging.makeLogRecord({"msg": text}))
        handler.close()
        process.stdout.close()


def _request(samples: list[Sample]) -> dict[str, Any]:
    """Samples as a message; those of one prompt share it."""
    places: dict[int, int] = {}
    prompts: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    for sample in samples:
        prompt = sample.prompt
        if id(prompt) not in places:
            places[id(prompt)] = len(prompts)
            fields = ("text", "image", "images", "target", "meta")
            prompts.append({name: getattr(prompt, name) for name in fields})
        rows.append([places[id(prompt)], sample.output, sample.group, sample.info])
    return {"prompts": prompts, "samples": rows}


def _advice(missing: str, module: str) -> str:
    """What to do about a module that is not in a capsule."""
    top = module.partition(".")[0]
    if missing and f"{module}.".startswith(f"{missing}."):
        return f"Name the folder that holds {top} as `path`, or the package that brings it in `requires`."
    if missing.partition(".")[0] == "grpokit":
        return "A capsule has no grpokit: the scorer can do without, since samples are plain objects there."
    return f"Name the package that brings {missing} in `requires`." if missing else ""
