"""Several processes in a test: each runs the same function, as under torchrun."""

from __future__ import annotations

import math
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch._dynamo", "grpokit.trainer", "in_processes"])


class Processes:
    """Processes that were started together.

    Args:
        size: how many; with 1 there is no process group.
        work: a function of a module.
        arguments: for all.
    """

    def __init__(self, size: int, work: Callable[..., Any], *arguments: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.processes: list[BaseProcess] = []
        self.ends: list[Connection] = []
        for rank in range(size):
            here, there = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(target=_run, args=(rank, size, work, arguments, port, there), daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
            self.ends.append(here)

    def answers(self, seconds: float = 60) -> list[Any]:
        """What each returned; an exception's text where it raised one. Those that take longer are ended."""
        answers: dict[int, Any] = {}
        while len(answers) < len(self.ends):
            ready = wait([end for rank, end in enumerate(self.ends) if rank not in answers], timeout=seconds)
            if not ready:
                break
            for end in ready:
                rank = self.ends.index(end)  # type: ignore[arg-type]
                try:
                    answers[rank] = self.ends[rank].recv()
                except EOFError:
                    answers[rank] = "ended without a word"
        for process in self.processes:
            process.join(timeout=0 if len(answers) < len(self.ends) else seconds)
            process.kill()
        return [answers.get(rank, "still at work") for rank in range(len(self.ends))]


def together(size: int, work: Callable[..., Any], *arguments: Any, seconds: float = 60) -> list[Any]:
    """What `work(*arguments)` returns in each of `size` processes."""
    return Processes(size, work, *arguments).answers(seconds)


def assert_equal(one: Any, other: Any, tolerance: float) -> None:
    """Compare what two trainings have learned: their weights, and the metrics of each step."""
    import torch

    assert not isinstance(other, str), other
    for a, b in zip(one[0], other[0], strict=True):
        x, y = torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
        assert float((x - y).abs().max()) <= tolerance
    for row, again in zip(one[1], other[1], strict=True):
        assert row.keys() == again.keys()
        for name in row:
            # A moment is 0 in one order of a sum and 1e-40 in another, so the share of those that count differs.
            other_each_time = ("time", "step_time", "memory", "positions", "updates_swallowed")
            if not name.startswith(other_each_time) and not name.endswith("/seconds"):
                same = math.isclose(row[name], again[name], rel_tol=1e4 * tolerance, abs_tol=1e4 * tolerance)
                assert same or (math.isnan(row[name]) and math.isnan(again[name])), name


def _run(rank: int, size: int, work: Callable[..., Any], arguments: Any, port: int, end: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        if size > 1:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        end.send(work(*arguments))
    except BaseException as error:
        end.send(f"{type(error).__name__}: {error}" if hasattr(error, "page") else traceback.format_exc())
    finally:
        end.close()
        os._exit(0)
