"""The GPU of this process, of those that torchrun has started on the machine."""

from __future__ import annotations

import os
import sys


def take_own_gpu() -> None:
    """Make it CUDA's current device as soon as CUDA is used, so that "cuda" means it; nothing without torchrun.

    Processes that a process of torchrun starts, such as the workers of a reward, have the same one. A reward that uses
    no GPU takes no memory there: `torch.cuda.set_device` would take some at once. PyTorch has no public way to call it
    later, so this uses a private one.
    """
    number = os.environ.get("LOCAL_RANK", "")
    torch = sys.modules.get("torch")
    if torch is None or not number.isdecimal() or not torch.cuda.is_available():
        return
    own = int(number) % torch.cuda.device_count()  # an actor of Ray sees its own GPUs only
    torch.cuda._lazy_call(lambda: torch.cuda.set_device(own))
