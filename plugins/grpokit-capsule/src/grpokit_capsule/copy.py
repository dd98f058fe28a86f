"""One process in a capsule, seen from the run, and the process that takes its place when it is lost.

Requests go to its stdin and answers come through a pipe of their own. What it prints goes to a log.
"""

from __future__ import annotations

import codecs
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

import torch

from grpokit import Prompt
from grpokit.errors import PluginError, UsageError, error_line, on_one_line
from grpokit_capsule import environments, runner

_log = logging.getLogger(__name__)
_SILENT = 10.0  # seconds to wait for what is being built without a word
_STANDING = 600.0  # seconds that building it may take at least
_ENDING = 2.0  # seconds
_PRINTED = 4 * 2**20  # bytes of what it prints, of which the last are kept
_CHUNK = 2**16  # bytes
_LAST_WORDS = 1_000  # characters of what it prints that a message may tell
_OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


class LostError(Exception):
    """A call got no answer; the message says what became of the process, such as "lost its capsule's process"."""


class Copy:
    """A process that holds a reward, or the worlds of episodes.

    Args:
        what: it holds, for messages, such as "reward 'sharpness'".
        python: the interpreter.
        order: what it builds (see `runner.build` and `runner.Worlds`).
        gpu: the number of the GPU that it sees; None: it sees what the run sees, and with torchrun that of its process.
        timeout: seconds that a call may take.
        option: which option says so.
        log: the file for what it prints.

    Attributes:
        versions: of Python and the packages there, once it is ready.
        tools: those of a world, once it is ready.

    Raises:
        UsageError: it cannot be started.
    """

    def __init__(
        self,
        what: str,
        python: str,
        order: Mapping[str, Any],
        *,
        gpu: int | None,
        timeout: float,
        option: str,
        log: Path,
    ) -> None:
        self.what, self.python, self.order = what, python, order
        self.variables = _variables(gpu, python)
        self.timeout, self.option, self.log = timeout, option, log
        self.versions: dict[str, str] = {}
        self.tools: list[Any] = []
        self._ended = False
        self._start()

    def _start(self) -> None:
        """Start a process that builds what the order says."""
        self._late = False
        self._standing = False
        self._printed: deque[str] = deque(maxlen=_LAST_WORDS)  # characters
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
            raise UsageError(f"The capsule of the {self.what} cannot be started: {error_line(error)}.") from error
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
        """Wait until it is built.

        Raises:
            PluginError: it cannot be built, or the process ended before.
        """
        if self._standing:
            return
        limit = max(self.timeout, _STANDING)
        waiting = threading.Timer(_SILENT, _log.warning, [f"Waiting for the {self.what} to be built in its capsule"])
        waiting.start()
        try:
            with self._within(limit):
                reply = runner.receive(self._answers)
        except (EOFError, OSError, ValueError):
            loss = self._loss()
            if self._late:
                loss = f"was not built within {limit:g} s; a longer {self.option} gives it more"
            raise PluginError(f"The {self.what} {loss.rstrip(',')}.", page="capsules") from None
        finally:
            waiting.cancel()
        if "error" in reply:
            self._kill()  # threads that it has started may keep it from ending
            self._process.wait()
            advice = _advice(reply["missing"], self.order["module"], self.python)
            wrong = f"The {self.what} cannot be built in its capsule: {reply['error']}. {advice}".rstrip()
            raise PluginError(wrong, page="capsules")
        self.versions = reply["versions"]
        self.tools = reply["tools"]
        self._standing = True

    @property
    def process(self) -> int | None:
        """The number of the process; None where it has ended."""
        return self._process.pid if self._process.poll() is None else None

    def exchange(self, message: Any) -> Any:
        """Send a message, also to a new process where the last one was lost; returns the answer.

        Raises:
            LostError: the process ended, or gave no answer in time.
            PluginError: what it holds cannot be built again.
            TypeError: the message cannot be sent.
            OSError, ValueError: what it holds cannot be read, such as a picture whose file is cut.
        """
        if self.process is None:
            self._close_pipes()
            self._start()
        self.ready()
        data = runner.to_bytes(message)
        try:
            with self._within(self.timeout):
                runner.send(self._stdin, data)
                return runner.receive(self._answers)
        except (EOFError, OSError, ValueError):
            loss = self._loss()
            if self._late:
                loss = f"gave no answer within {self.timeout:g} s ({self.option})"
            raise LostError(loss) from None
        except KeyboardInterrupt:  # its answer may still come, and must not be taken for the next one
            self._kill()
            raise

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
        last_lines = "".join(self._printed).splitlines()[-3:]
        words = on_one_line(" ".join(last_lines), most=200)
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
        printed = self._printed
        with suppress(OSError):
            self.log.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(self.log, maxBytes=_PRINTED, backupCount=1, encoding="utf-8", delay=True)
        handler.handleError = lambda record: None  # type: ignore[method-assign]  # such as a full disk
        handler.terminator = ""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while chunk := process.stdout.read1(_CHUNK):  # type: ignore[attr-defined]
            text = decoder.decode(chunk)
            printed.extend(text[-_LAST_WORDS:])
            handler.emit(logging.makeLogRecord({"msg": text}))
        handler.close()
        process.stdout.close()


def prompt_fields(prompt: Prompt) -> dict[str, Any]:
    """What is sent of a prompt."""
    return {name: getattr(prompt, name) for name in ("text", "image", "images", "target", "meta")}


def _variables(gpu: int | None, python: str) -> dict[str, str]:
    """The environment variables of a copy, which is no process of torchrun; `python` means its own."""
    variables = environments.without_own_packages()
    variables["PATH"] = os.pathsep.join([os.path.dirname(python), variables.get("PATH", "")])
    rank = variables.get("LOCAL_RANK", "")
    if gpu is not None:
        variables["CUDA_VISIBLE_DEVICES"] = str(gpu)
    elif rank.isdecimal():  # each process has a GPU of its own, and what is in its capsules shares it
        every = ",".join(map(str, range(torch.cuda.device_count())))
        seen = variables.get("CUDA_VISIBLE_DEVICES", every).split(",")
        variables["CUDA_VISIBLE_DEVICES"] = seen[int(rank) % len(seen)]
    return {name: value for name, value in variables.items() if name not in _OF_TORCHRUN}


def _advice(missing: str, module: str, python: str) -> str:
    """What to do about a module that is not in a capsule."""
    top = module.partition(".")[0]
    if missing and f"{module}.".startswith(f"{missing}."):
        return f"Name the folder that holds {top} as `path`, or the package that brings it in `requires`."
    if missing.partition(".")[0] == "grpokit":
        return "A capsule has no grpokit. Its code can do without: samples and prompts are plain objects there."
    if missing and not Path(python).is_relative_to(environments.cache()):
        return f"Install the package that brings it: {python} -m pip install ..."
    return f"Name the package that brings {missing} in `requires`." if missing else ""
