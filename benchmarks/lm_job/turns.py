"""A worker's side of the rounds: one step of training for each "go" that it reads, one line of JSON in reply."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lm_job.clock import Clock, Memory
from lm_job.job import Job


class Turns:
    """Lets a contender take a step when it is its turn, and measures that step.

    Attributes:
        clock: measures the phases of the step.
        step: the index of the step, from 0.
    """

    def __init__(self, job: Job) -> None:
        self.cuda = job.device == "cuda"
        self.clock = Clock(cuda=self.cuda)
        self.step = -1
        self._memory: Memory | None = None
        self._replies = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print goes to the log, not among the replies

    def begin(self) -> bool:
        """Wait for the next turn; False: there is none."""
        if self._memory is None:
            self._memory = Memory(cuda=self.cuda)
            self.reply(versions=_versions(), machine=_machine(cuda=self.cuda))
        if sys.stdin.readline().strip() != "go":
            return False
        self.step += 1
        self._memory.reset()
        self.clock.start()
        return True

    def end(self, *, tokens: float, **facts: float) -> None:
        """End the step that `begin` began.

        Args:
            tokens: new tokens that it drew and learned from.
            facts: further numbers of the step, such as "entropy".
        """
        seconds = self.clock.stop()
        assert self._memory is not None
        self.reply(**seconds, growth=self._memory.growth(), tokens=tokens, facts=facts)

    def reply(self, **message: Any) -> None:
        """Send one line."""
        self._replies.write(json.dumps(message) + "\n")
        self._replies.flush()


def _versions() -> dict[str, str]:
    """Package -> version, of what is installed here."""
    found = {}
    for name in ("torch", "transformers", "peft", "trl"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    """The CPU's name."""
    facts = Path("/proc/cpuinfo")  # of Linux
    found = re.search(r"model name\s*: (.+)", facts.read_text()) if facts.exists() else None
    return found[1].strip() if found else platform.machine()


def _machine(*, cuda: bool) -> dict[str, Any]:
    """The machine in words."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if cuda else "",
    }
