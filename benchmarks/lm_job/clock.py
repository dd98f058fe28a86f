"""Seconds per phase, by the wall and by the process's CPU time, and the growth of memory in a step."""

from __future__ import annotations

import functools
import gc
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch


class Clock:
    """A step's seconds, each counted to the innermost phase that is open; "other" where none is.

    On a GPU the wall times are those of events in its queue, so that measuring waits for nothing inside a step.
    """

    def __init__(self, *, cuda: bool) -> None:
        self.cuda = cuda
        self._open: list[str] = []
        self._marks: list[tuple[str, Any, float]] = []

    def start(self) -> None:
        """Begin a step."""
        self._open, self._marks = ["other"], []
        self._mark()

    def stop(self) -> dict[str, dict[str, float]]:
        """End the step: {"wall": {phase: seconds}, "cpu": {phase: seconds}}."""
        self._mark()
        self._open = []
        if self.cuda:
            torch.cuda.synchronize()
        seconds: dict[str, dict[str, float]] = {"wall": defaultdict(float), "cpu": defaultdict(float)}
        for (phase, at, cpu), (_, later, cpu_later) in zip(self._marks, self._marks[1:], strict=False):
            seconds["wall"][phase] += at.elapsed_time(later) / 1000 if self.cuda else later - at
            seconds["cpu"][phase] += cpu_later - cpu
        return seconds

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count the time inside to `phase`."""
        if not self._open:  # outside of a step, such as a check of the first weights
            yield
            return
        self._open.append(phase)
        self._mark()
        try:
            yield
        finally:
            self._open.pop()
            self._mark()

    def watch(self, owner: Any, name: str, phase: str | Callable[[], str]) -> None:
        """Count all calls of `owner.name` to a phase, or to the phase that a function says at the time."""
        call = getattr(owner, name)

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self(phase if isinstance(phase, str) else phase()):
                return call(*args, **kwargs)

        setattr(owner, name, timed)

    def watch_training(self) -> None:
        """Watch what all contenders call: backward passes, clipping, and the optimizer."""
        from accelerate import Accelerator

        self.watch(torch.Tensor, "backward", "backward")
        for name in ("clip_grad_norm_", "get_total_norm", "clip_grads_with_norm_"):
            self.watch(torch.nn.utils, name, "optimizer")
        self.watch(Accelerator, "clip_grad_norm_", "optimizer")
        self.watch(torch.optim.AdamW, "step", "optimizer")

    def _mark(self) -> None:
        if self.cuda:
            at: Any = torch.cuda.Event(enable_timing=True)
            at.record()
        else:
            at = time.perf_counter()
        self._marks.append((self._open[-1], at, time.process_time()))


class Memory:
    """The most memory in a step, beyond what was in use before the first one.

    On a GPU that of torch's allocator; on a CPU the resident memory of the process.
    """

    def __init__(self, *, cuda: bool) -> None:
        self.cuda = cuda
        gc.collect()
        self.before = torch.cuda.memory_allocated() / 2**20 if cuda else status("VmRSS")

    def reset(self) -> None:
        """Begin a step."""
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            return
        with suppress(OSError):  # then the peak is the highest so far
            Path("/proc/self/clear_refs").write_text("5")

    def growth(self) -> float:
        """MiB."""
        return (torch.cuda.max_memory_allocated() / 2**20 if self.cuda else status("VmHWM")) - self.before


def status(field: str) -> float:
    """A figure of Linux about this process, in MiB."""
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found, f"/proc/self/status has no {field}"
    return int(found[1]) / 1024
