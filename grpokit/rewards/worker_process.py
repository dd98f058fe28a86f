"""What a worker process does: it builds a reward by its name, and scores what comes through its pipe.

The run's end of the pipe is in `worker_supervisor`. Samples come as `pickle`, from the run that started this process.
Answers go back as JSON, so that nothing which a reward makes is unpickled in the run.
"""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import numbers
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from grpokit import registry
from grpokit.errors import GrpokitError, PluginError, UsageError, a_type, reworded, typed_line
from grpokit.rewards.submission import REORDERED, reordered
from grpokit.types import Sample

PIPE_CLOSED = 113
"""The exit code of a process whose reward has closed the pipe."""


def serve(pipe: Connection, output: Connection, use: str, params: Mapping[str, Any]) -> None:
    """Build the reward, then score what comes until nothing more can come.

    Args:
        pipe: to the run, for samples and answers.
        output: to the run, for what the reward prints.
        use: the reward's name.
        params: for its factory.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the run's own decides
    signal.signal(signal.SIGTERM, lambda *_: None)  # likewise; programs that the reward starts do not inherit this
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.setsid()  # so that what the reward starts can be ended with it
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _leave_resource_tracker()
    _print_into(output)
    if "OMP_NUM_THREADS" not in os.environ:  # the processes share the cores
        os.environ["OMP_NUM_THREADS"] = "1"
        if "torch" in sys.modules:  # the user's script imports it, so it has looked there already
            sys.modules["torch"].set_num_threads(1)
    try:
        _answer_all(pipe, use, params)
    except (EOFError, ConnectionError):  # the run has ended
        pass
    except OSError:
        os._exit(PIPE_CLOSED)


def _leave_with_parent() -> None:
    """End this process, and what the reward has started, once the run's process is gone."""
    parent = multiprocessing.parent_process()
    while parent is not None and os.getppid() == parent.pid:
        time.sleep(0.2)
    os.killpg(0, signal.SIGKILL)


def _leave_resource_tracker() -> None:
    """Let go of the pipe to the run's resource tracker, which prints a traceback for bytes that it does not understand.

    A reward that writes into all file descriptors would reach it. Where the reward needs a tracker, Python starts one.
    """
    pipe = resource_tracker.getfd()
    if pipe is not None:
        os.close(pipe)
    resource_tracker._resource_tracker._fd = None  # type: ignore[attr-defined]  # as `spawn` sets it


def _print_into(output: Connection) -> None:
    """Lead stdout and stderr, also those of compiled code and of other programs, to the run."""
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        os.dup2(output.fileno(), number)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # a process that is killed cannot write what it holds back
    output.close()


def _answer_all(pipe: Connection, use: str, params: Mapping[str, Any]) -> None:
    try:
        reward = registry.create("reward", use, params)
        if not callable(reward):
            raise PluginError(f"The reward '{use}' gave {a_type(reward)}, which cannot be called.")
    except GrpokitError as error:
        return _send(pipe, 0, "error", *_typed(error))
    except BaseException as error:  # whatever it is, the run reports it
        return _send(pipe, 0, "error", "PluginError", f"The reward '{use}' cannot be built: {typed_line(error)}.")
    _send(pipe, 0, "built")
    number, process = 0, os.getpid()
    while True:
        number += 1
        try:
            samples = pipe.recv()
        except (EOFError, OSError):
            raise
        except BaseException as error:  # a sample's class may not be importable here
            samples = error
        _send(pipe, number, "taken")
        answer = _answer(reward, samples)
        if os.getpid() != process:  # the reward forked, and its child came back, too
            os._exit(0)
        _send(pipe, number, *answer)


def _send(pipe: Connection, number: int, kind: str, *content: Any) -> None:
    """Send a message; `number` counts the calls, so that a reward's own bytes are not taken for an answer."""
    pipe.send_bytes(json.dumps([number, kind, *content], default=_plain).encode())


def _answer(reward: Any, samples: list[Sample] | BaseException) -> tuple[Any, ...]:
    """The kind of an answer and its content: ("values", scores), ("failure", words) or ("error", type, words)."""
    torch = sys.modules.get("torch")  # a reward that does without it is spared its import
    try:
        if isinstance(samples, BaseException):
            raise UsageError(f"samples cannot be read in its worker process ({typed_line(samples)}). Remove `workers`")
        order = tuple(samples)
        with torch.no_grad() if torch else nullcontext():
            values = reward(samples)
    except UsageError as error:
        return "error", *_typed(error)
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return (
            "failure",
            f"raised {typed_line(error)} ({Path(place.filename).name}, line {place.lineno}, in {place.name})",
        )
    if reordered(samples, order):
        return "error", "RewardError", f"it {REORDERED}."
    try:
        json.dumps(values, default=_plain)
    except BaseException as error:  # the reward may return anything
        inside = (
            f" that holds {error.args[0]}" if isinstance(error, _NoNumberError) and error.value is not values else ""
        )
        return "error", "RewardError", f"it returned {a_type(values)}{inside}; expected one number per sample."
    return "values", values


class _NoNumberError(Exception):
    def __init__(self, value: object) -> None:
        super().__init__(a_type(value))
        self.value = value


def _plain(value: Any) -> Any:
    """What JSON cannot write, as something that it can: arrays and tensors as lists, other numbers as floats."""
    if type(value).__module__.partition(".")[0] in ("numpy", "torch"):
        return value.tolist()
    if not isinstance(value, numbers.Real):
        raise _NoNumberError(value)
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _typed(error: GrpokitError) -> tuple[str, str]:
    """The kind of an error, which the run knows, and its words."""
    try:
        text = str(error)
    except Exception:  # a user's class may fail in its __str__
        text = typed_line(error)
    return type(reworded(error, text)).__name__, text
