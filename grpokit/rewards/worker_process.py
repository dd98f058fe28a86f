"""What a worker process does: it builds a reward by its name, and scores what comes through its pipe.

The run's end of the pipe is in `worker_supervisor`. Samples come as `pickle`, from the run that started this process.
Answers go back as JSON, so that nothing which a reward makes is unpickled in the run.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from grpokit.errors import typed_line
from grpokit.rewards.answers import Message, answer, as_json, build

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
    reward, first = build(use, params)
    _send(pipe, 0, *first)
    if reward is None:
        return
    number, process = 0, os.getpid()
    while True:
        number += 1
        try:
            samples = pipe.recv()
        except (EOFError, OSError):
            raise
        except BaseException as error:  # a sample's class may not be importable here
            unread = f"samples cannot be read in its worker process ({typed_line(error)}). Remove `workers`"
            samples = None
        _send(pipe, number, "taken")
        message: Message = ("error", "UsageError", unread) if samples is None else answer(reward, samples)
        if os.getpid() != process:  # the reward forked, and its child came back, too
            os._exit(0)
        _send(pipe, number, *message)


def _send(pipe: Connection, number: int, kind: str, *content: Any) -> None:
    """Send a message; `number` counts the calls, so that a reward's own bytes are not taken for an answer."""
    pipe.send_bytes(as_json([number, kind, *content]))
