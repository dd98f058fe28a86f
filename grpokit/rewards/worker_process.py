"""What a worker process does: it builds a reward by its name, and scores what comes through its pipe.

The other end is `grpokit.rewards.worker_pool`. What goes through is `pickle`, between a run and the processes that it
started.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from grpokit import registry
from grpokit.errors import GrpokitError, PluginError, UsageError, a_type
from grpokit.types import Sample


def serve(pipe: Connection, use: str, params: Mapping[str, Any]) -> None:
    """Build the reward, then score what comes until nothing more can come.

    Args:
        pipe: to the run.
        use: the reward's name.
        params: for its factory.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the run's own decides
    signal.signal(signal.SIGTERM, lambda *_: None)  # likewise; programs that the reward starts do not inherit this
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.setsid()  # so that what the reward starts can be ended with it
    if "OMP_NUM_THREADS" not in os.environ:  # the processes share the cores
        os.environ["OMP_NUM_THREADS"] = "1"
        if "torch" in sys.modules:  # the user's script imports it, so it has looked there already
            sys.modules["torch"].set_num_threads(1)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        reward = registry.create("reward", use, params)
        if not callable(reward):
            raise PluginError(f"The reward '{use}' gave a {type(reward).__name__}, which cannot be called.")
    except GrpokitError as error:
        pipe.send(("failed", type(error).__name__, str(error)))
        return
    pipe.send(("built",))
    while True:
        try:
            samples = pipe.recv()
        except EOFError:
            return
        except Exception as error:  # a sample's class may not be importable here
            samples = error
        pipe.send("taken")
        pipe.send_bytes(_answer(reward, samples))


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL)  # what the reward has started, and this process itself


def _answer(reward: Any, samples: list[Sample] | Exception) -> bytes:
    torch = sys.modules.get("torch")  # a reward that does without it is spared its import
    try:
        if isinstance(samples, Exception):
            raise UsageError(f"samples cannot be read in its worker process ({one_line(samples)}). Take `workers` out")
        with torch.no_grad() if torch else nullcontext():
            values = reward(samples)
    except UsageError as error:
        return _packed("error", type(error).__name__, str(error))
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}, in {place.name}"
        return _packed("failure", f"raised {one_line(error)} ({where})")
    try:
        return _packed("values", _plain(values))
    except Exception:  # of whatever the reward made
        return _packed("error", "RewardError", f"it returned {a_type(values)}; expected one number per sample.")


def _packed(*answer: Any) -> bytes:
    return pickle.dumps(answer)


def _plain(values: Any) -> Any:
    """Without arrays, so that the run's process need not share memory with this one."""
    of_library = type(values).__module__.partition(".")[0] in ("numpy", "torch")
    if of_library:
        return values.tolist()
    return [_plain(x) for x in values] if isinstance(values, (list, tuple)) else values


def one_line(error: BaseException) -> str:
    """An error's type and words, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
