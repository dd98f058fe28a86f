"""Whether a step's rollout can be held in memory at all, and whether it draws a prompt more than once.

Both figures are measured on small rollouts, where a step has so many rows that it matters: what a row keeps, and what a
policy needs beside that while it draws (where the system tells the peak of a process).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from grpokit.errors import UsageError, counted
from grpokit.sampling import derive_seeds
from grpokit.trainer import Trainer
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.types import Rollout

_MANY_ROWS = 10_000  # fewer are not worth the small rollout
_OBJECTS = 1_000  # bytes that the Python objects of a row take at least
_TRIAL_ROWS = 256
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # of a container
_PROCESS = Path("/proc/self")


def repeated_prompts(trainer: Trainer) -> list[str]:
    """A warning where a step draws a prompt more than once."""
    total, wanted = len(trainer.train_prompts), trainer.prompts_per_step
    if wanted <= total:
        return []
    return [
        f"a step draws {counted(wanted, 'prompt')}, but there {'is' if total == 1 else 'are'} only {total:,}: "
        f"each comes up to {-(-wanted // total):,} times in a step, in a group of its own each time, and a step has "
        f"{wanted * trainer.group_size:,} rows"
    ]


def refuse_what_cannot_fit(trainer: Trainer) -> None:
    """Compare the memory that a step's rollout takes with what is free.

    Raises:
        UsageError: it cannot fit; with both figures.
    """
    rows = trainer.prompts_per_step * trainer.group_size
    if rows < _MANY_ROWS:
        return
    small = min(_TRIAL_ROWS, rows)
    _drawn(trainer, 2)  # what is set up once is no part of a row
    with _peak() as peak:
        rollout = _drawn(trainer, small)
    needed = {device: size * rows // small for device, size in _bytes_by_device(rollout).items()}
    if trainer.accelerator.device.type == "cpu":
        at_once = min(trainer.rollout_batch_size or rows, rows)
        needed["cpu"] = max(needed["cpu"], peak.bytes * at_once // small)
    for device, size in needed.items():
        free = _memory(device)
        if free and size > free:
            raise UsageError(
                f"A step of {counted(trainer.prompts_per_step, 'prompt')} x {trainer.group_size} samples = {rows:,} "
                f"rows takes about {size / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB of memory are free ({device}). "
                "Lower trainer.prompts_per_step or trainer.group_size, or set trainer.rollout_batch_size."
            )


def _drawn(trainer: Trainer, rows: int) -> Rollout:
    """A rollout of the first prompt that no step draws."""
    policy = CheckedPolicy(trainer.policy, mixed_precision=trainer.mixed_precision)
    seeds = derive_seeds(trainer.seed, stream="sample", step=0, prompts=1, group_size=rows)
    return policy.rollout(trainer.train_prompts[:1], rows, seeds, fit=lambda draw: draw(rows))


@dataclass
class _Peak:
    bytes: int = 0


@contextmanager
def _peak() -> Iterator[_Peak]:
    """By how much the memory of this process rises at most in here; 0 where the system does not tell."""
    peak = _Peak()
    try:
        (_PROCESS / "clear_refs").write_text("5")  # sets the peak back to what is used now
        before = _status("VmRSS")
    except OSError:
        yield peak
        return
    yield peak
    peak.bytes = max(0, _status("VmHWM") - before)


def _status(key: str) -> int:
    """An entry of this process's status, in bytes."""
    return _entry(_PROCESS / "status", key)


def _entry(file: Path, key: str) -> int:
    """The bytes behind "key:" in a file of Linux that counts kilobytes."""
    lines = file.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def _bytes_by_device(rollout: Rollout) -> Counter[str]:
    """What a rollout keeps: its tensors where they are, its outputs and objects in the machine's memory."""
    sizes: Counter[str] = Counter()
    old = rollout.old
    views = (old.logprobs, old.entropy, old.mean, old.std, rollout.mask, *rollout.trace.per_row.values())
    for tensor in views:
        if tensor is not None:
            sizes[tensor.device.type] += tensor.nbytes
    for sample in rollout.samples:
        sizes["cpu"] += _OBJECTS + _bytes_of(sample.output)
    return sizes


def _bytes_of(output: Any) -> int:
    if isinstance(output, Image.Image):
        return output.width * output.height * len(output.getbands())
    if isinstance(output, Tensor):
        return int(output.nbytes)
    return len(output) if isinstance(output, str) else 0


def _memory(device: str) -> int:
    """Free memory of a kind of device in bytes; 0 where that is not known."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    if device != "cpu":
        return 0
    try:
        free = _entry(Path("/proc/meminfo"), "MemAvailable")
    except (OSError, StopIteration):  # not Linux
        try:
            free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        except (OSError, ValueError, AttributeError):
            return 0
    for limit in _LIMITS:
        with suppress(OSError, ValueError):  # there is none, or it says "max"
            free = min(free, int(limit.read_text(encoding="ascii")))
    return free
