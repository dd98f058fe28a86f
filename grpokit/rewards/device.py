"""Where a reward's model computes: what its parameter `device` means."""

from __future__ import annotations

import torch

from grpokit.errors import UsageError, one_line


def find_device(name: str | None, *, reward: str) -> torch.device:
    """The device of a reward's model.

    Args:
        name: as torch names it; None: the GPU if there is one.
        reward: the reward's name, for the message.

    Raises:
        UsageError: there is no such device, or it cannot compute.
    """
    if name is None or name == "cuda":
        name = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else name or "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).tolist()  # "meta" holds no numbers
    except (RuntimeError, AssertionError) as error:  # the second: a torch without CUDA
        raise UsageError(
            f"{reward}: the device {name!r} cannot be used here: {one_line(error)}. Leave it out, or set cpu."
        ) from error
    return device
