"""What a worker process does: it builds a reward by its name, and scores what comes through its pipe.

The run's end of the pipe is in `worker_pool`. Samples come as `pickle`, from the run that started this process.
Answers go back as JSON, so that nothing which a reward makes is unpickled in the run. An answer repeats the number of
its request, and names the process: whatever else a reward writes into the pipe is no answer.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from grpokit.errors import UsageError, error_line
from grpokit.rewards.calling import build, call_reward
from grpokit.rewards.submission import Portion, to_message


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
    _print_into(output)
    if "OMP_NUM_THREADS" not in os.environ:  # the processes share the cores
        os.environ["OMP_NUM_THREADS"] = "1"
        if "torch" in sys.modules:  # the user's script imports it, so it has looked there already
            sys.modules["torch"].set_num_threads(1)
    reward, built = build(use, params)
    with suppress(EOFError, ConnectionError):  # the run has ended
        _send(pipe, 0, built)
        while built.error is None:
            number = json.loads(pipe.recv_bytes())
            _send(pipe, number, _answer(reward, pipe))


def _send(pipe: Connection, number: int, portion: Portion) -> None:
    pipe.send_bytes(json.dumps([os.getpid(), number, to_message(portion)]).encode())


def _answer(reward: Any, pipe: Connection) -> Portion:
    try:
        rows, samples = pipe.recv()
    except (EOFError, OSError):
        raise
    except Exception as error:  # a sample's class may not be importable here
        wrong = f"samples cannot be read in its worker process ({error_line(error)}). Remove `workers`"
        return Portion(rows=[], error=UsageError(wrong))
    return call_reward(reward, rows, samples)


def _leave_with_parent() -> None:
    """End this process, and what the reward has started, once the run's process is gone."""
    parent = multiprocessing.parent_process()
    while parent is not None and os.getppid() == parent.pid:
        time.sleep(0.2)
    os.killpg(0, signal.SIGKILL)


def _print_into(output: Connection) -> None:
    """Lead stdout and stderr, also those of compiled code and of other programs, to the run."""
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        os.dup2(output.fileno(), number)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # a process that is killed cannot write what it holds back
    output.close()
