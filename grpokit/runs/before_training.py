"""Whether a step's rollout can be held in memory at all, and whether it draws a prompt more than once.

What a row keeps is measured on one small rollout, where a step has so many rows that it matters. It is a lower bound:
what a policy needs while it draws comes on top.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from grpokit.errors import UsageError, counted
from grpokit.sampling import derive_seeds
from grpokit.trainer import Trainer
from grpokit.training.devices import autocast
from grpokit.types import Rollout

_MANY_ROWS = 10_000  # fewer are not worth the small rollout
_OBJECTS = 1_000  # bytes that the Python objects of a row take at least
_CGROUP = Path("/sys/fs/cgroup/memory.max")


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
    """Compare the memory that a step's rollout takes at least with all that there is.

    Raises:
        UsageError: it cannot fit; with both figures.
    """
    rows = trainer.prompts_per_step * trainer.group_size
    if rows < _MANY_ROWS:
        return
    seeds = derive_seeds(trainer.seed, stream="sample", step=0, prompts=1, group_size=2).to(trainer.accelerator.device)
    with torch.no_grad(), autocast(trainer.accelerator.device, trainer.mixed_precision):
        rollout = trainer.policy.rollout(trainer.train_prompts[:1], 2, seeds=seeds)
    for device, size in _bytes_by_device(rollout).items():
        needed, there = size * rows // rollout.rows, _memory(device)
        if there and needed > there:
            raise UsageError(
                f"A step of {counted(trainer.prompts_per_step, 'prompt')} x {trainer.group_size} samples = {rows:,} "
                f"rows keeps at least {needed / 2**30:,.1f} GiB, and there are {there / 2**30:,.1f} GiB of memory "
                f"({device}). Lower trainer.prompts_per_step or trainer.group_size."
            )


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
    """All memory of a kind of device in bytes; 0 where that is not known."""
    if device == "cuda":
        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    if device != "cpu":
        return 0
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return 0
    try:
        return min(physical, int(_CGROUP.read_text(encoding="ascii")))  # a container's limit
    except (OSError, ValueError):  # there is none, or it says "max"
        return physical
