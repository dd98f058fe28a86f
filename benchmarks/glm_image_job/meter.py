"""Seconds and the highest memory of each phase of a step, and the speed of the device's memory."""

from __future__ import annotations

import functools
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from lm_job.clock import Clock, Memory

_COPIED = 2**30  # bytes, on a GPU


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A step.

    Attributes:
        seconds: phase -> seconds.
        peaks: phase -> the most memory in it, in GiB: on a GPU all that torch's allocator has given out, on a CPU the
            growth of the process.
        reserved: GiB that the allocator holds at the end; 0 on a CPU.
    """

    seconds: Mapping[str, float]
    peaks: Mapping[str, float]
    reserved: float


class Meter:
    """Measures a step; each moment counts to the innermost phase that is open, and to "other" where none is.

    Args:
        cuda: times are those of events in the GPU's queue, and memory is its own.
    """

    def __init__(self, *, cuda: bool) -> None:
        self.cuda = cuda
        self._clock, self._memory = Clock(cuda=cuda), Memory(cuda=cuda)
        self._open: list[str] = []
        self._peaks: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count what happens inside to a phase."""
        if not self._open:
            yield
            return
        with self._clock(phase):
            self._look()
            self._open.append(phase)
            try:
                yield
            finally:
                self._look()
                self._open.pop()

    def start(self) -> None:
        """Begin a step."""
        self._open, self._peaks = ["other"], defaultdict(float)
        self._memory.reset()
        self._clock.start()

    def stop(self) -> Measured:
        """End the step."""
        self._look()
        self._open = []
        seconds = self._clock.stop()["wall"]
        reserved = torch.cuda.memory_reserved() / 2**30 if self.cuda else 0.0
        return Measured(seconds=seconds, peaks=dict(self._peaks), reserved=reserved)

    def watch(self, owner: Any, name: str, phase: str) -> None:
        """Count all calls of `owner.name` to a phase."""
        call = getattr(owner, name)

        @functools.wraps(call)
        def measured(*args: Any, **options: Any) -> Any:
            with self(phase):
                return call(*args, **options)

        setattr(owner, name, measured)

    def watch_policy(self, policy: Any) -> None:
        """Count the stretches of a policy's work to "rollout", "score" and "train", and its pictures to "decode"."""
        during = policy.during

        @contextmanager
        def stretch(work: str) -> Iterator[None]:
            with self(work), during(work):
                yield

        policy.during = stretch
        self.watch(policy.decoder, "pictures", "decode")

    def _look(self) -> None:
        phase = self._open[-1]
        self._peaks[phase] = max(self._peaks[phase], self._memory.growth() / 1024)
        self._memory.reset()


def bandwidth(*, cuda: bool, rounds: int = 10) -> float:
    """Bytes per second that a copy inside the device's memory reads and writes; the median of some."""
    source = torch.ones(_COPIED // (1 if cuda else 16), dtype=torch.uint8, device="cuda" if cuda else "cpu")
    target = torch.empty_like(source)
    clock, seconds = Clock(cuda=cuda), []
    for _ in range(rounds + 1):
        clock.start()
        target.copy_(source)
        seconds.append(sum(clock.stop()["wall"].values()))
    return 2 * source.numel() / statistics.median(seconds[1:])
