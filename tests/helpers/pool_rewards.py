"""Rewards for worker processes: they do what their outputs say."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from grpokit import DataError, Sample, UsageError


def obey(samples: Sequence[Sample]) -> list[Any]:
    """Each output is a number to return, or an order."""
    return [_one(str(s.output)) for s in samples]


def hangs(samples: Sequence[Sample]) -> list[float]:
    """On the prompt 3."""
    if samples[0].prompt.text == "3":
        time.sleep(3600)
    return [float(len(str(s.output))) for s in samples]


def _one(output: str) -> Any:
    if output == "raise":
        raise ValueError("I do not like\nthis one")
    if output == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if output == "leave":
        os._exit(3)
    if output == "hang":
        time.sleep(3600)
    if output == "stop":  # as a process that is swapped out, or held by a debugger
        os.kill(os.getpid(), signal.SIGSTOP)
    if output == "cancelled":
        raise asyncio.CancelledError
    if output == "generator-exit":
        raise GeneratorExit
    if output == "wordless":
        raise WordlessError
    if output == "orphan":  # what was forked holds the pipe open
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(3)
    if output == "target":
        raise DataError("the target is no number")
    if output == "pid":
        return os.getpid()
    if output == "inf":
        return math.inf
    if output == "none":
        return None
    return float(output)


class WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def slow(samples: Sequence[Sample], seconds: float = 0.2) -> list[float]:
    time.sleep(seconds * len(samples))
    return [float(s.output) for s in samples]


def group_mean(samples: Sequence[Sample]) -> list[float]:
    """Depends on its group."""
    mean = sum(float(s.output) for s in samples) / len(samples)
    return [float(s.output) - mean for s in samples]


def generator(samples: Sequence[Sample]) -> Iterator[float]:
    return (0.0 for _ in samples)


def short(samples: Sequence[Sample]) -> list[float]:
    return [0.0] * (len(samples) - 1)


def array(samples: Sequence[Sample]) -> Any:
    import numpy as np

    return np.array([float(s.output) for s in samples], dtype=np.float32)


def arrays_of_one(samples: Sequence[Sample]) -> Any:
    import numpy as np

    return [np.array([float(s.output)]) for s in samples]


class Built:
    """Counts its calls, and may be impossible to build."""

    def __init__(self, mode: str = "good") -> None:
        if mode == "usage":
            raise UsageError("Weights 'w.pt' are missing. Run: fetch w.pt")
        if mode == "crash":
            raise KeyError("no such thing")
        if mode == "die":
            os._exit(7)
        self.calls = 0

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        self.calls += 1
        return [float(self.calls)] * len(samples)


class Mortal:
    """Cannot be built a second time: the process ends by a signal."""

    def __init__(self, marks: str) -> None:
        place = Path(marks, "built")
        if place.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        place.touch()

    def __call__(self, samples: Sequence[Sample]) -> list[Any]:
        return obey(samples)


class Odd(float):
    """Can be written, and not read again."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def odd(samples: Sequence[Sample]) -> list[float]:
    return [Odd(1) for _ in samples]


class Evil:
    """Ends the process that reads it."""

    def __reduce__(self) -> Any:
        return os._exit, (7,)


def evil(samples: Sequence[Sample]) -> list[Any]:
    return [Evil() for _ in samples]


def talkative(samples: Sequence[Sample]) -> list[float]:
    """Prints by itself and by another program."""
    print("first words")
    print("x" * 100_000)
    subprocess.run(["echo", "of another program"], check=True)
    return [float(s.output) for s in samples]


def sorting(samples: list[Sample]) -> list[float]:
    samples.sort(key=lambda s: str(s.output))
    return [float(s.output) for s in samples]


def forking(samples: Sequence[Sample], order: str = "return") -> list[float]:
    """Comes back in two processes, and gives the order to the copy."""
    if os.fork() == 0 and order != "return":
        _one(order)
    return [float(s.output) for s in samples]


def interfering(samples: Sequence[Sample]) -> list[float]:
    """Writes answers into its pipe: one with the number of the request before, one of another process."""
    number = int(samples[0].output)
    for pipe in (each for each in gc.get_objects() if isinstance(each, Connection)):
        if pipe.writable and pipe.readable and not pipe.closed:
            for process, of in ((os.getpid(), number - 1), (os.getpid() + 1, number)):
                pipe.send_bytes(json.dumps([process, of, [[-1.0], "", None]]).encode())
    return [float(s.output) for s in samples]


def tensor_sum(samples: Sequence[Sample]) -> list[float]:
    return [float(s.output.sum()) for s in samples]


def torch_threads(samples: Sequence[Sample]) -> list[int]:
    import torch

    return [torch.get_num_threads() for _ in samples]


def program(samples: Sequence[Sample]) -> list[float]:
    """Waits for another program, whose process id it leaves in the file that the output names."""
    with subprocess.Popen(["sleep", "600"]) as started:
        Path(samples[0].output).write_text(str(started.pid))
    return [0.0] * len(samples)


def unlucky(samples: Sequence[Sample], order: str = "raise") -> list[float]:
    """Fails on prompt 3."""
    if samples[0].prompt.text == "3":
        _one(order)
    return [float(len(s.output)) for s in samples]
