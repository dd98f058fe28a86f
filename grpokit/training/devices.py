"""Devices and precision: where a policy trains, and in which dtype its calls compute."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from grpokit.errors import UsageError

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def find_device(device: str) -> torch.device:
    """The torch device for "auto", "cpu" or "cuda"; of several GPUs, the current one."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device is 'cuda', but torch finds no CUDA device. Use device: auto or cpu.")
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def place(modules: Mapping[str, torch.nn.Module], device: torch.device) -> None:
    """Move a policy's modules to a device, unless they are there already; quantised ones may refuse to move."""
    for module in modules.values():
        if any(p.device != device for p in module.parameters()):
            module.to(device)


def is_low_precision(dtype: torch.dtype) -> bool:
    """Whether weights of this dtype have fewer digits than fp32, as bf16 and the integers of a quantised base have."""
    return not dtype.is_floating_point or dtype.itemsize < 4


def any_low_precision(modules: Mapping[str, torch.nn.Module]) -> bool:
    """Whether some module computes in less than fp32, so that sampling and scoring differ by rounding."""
    return any(is_low_precision(p.dtype) for module in modules.values() for p in module.parameters())


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done all that was asked of it; what went wrong there is raised here."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def autocast(device: torch.device, mixed_precision: str, *, keep: bool = True) -> AbstractContextManager[Any]:
    """The autocast around a policy's calls, in "no", "bf16" or "fp16".

    `keep` keeps copies of weights that train for as long as a call lasts, for modules that are used again.
    """
    if mixed_precision not in ("no", *_DTYPES):
        raise UsageError(f"mixed_precision must be 'no', 'bf16' or 'fp16', got {mixed_precision!r}.")
    if mixed_precision == "no":
        return nullcontext()
    return torch.autocast(device.type, _DTYPES[mixed_precision], cache_enabled=keep)


def loss_scaler(device: torch.device, mixed_precision: str) -> torch.amp.GradScaler:
    """What keeps small gradients of fp16 above zero; with another precision it is off and changes nothing."""
    if mixed_precision == "fp16" and device.type == "cpu":
        raise UsageError("mixed_precision 'fp16' needs a GPU; on a CPU use 'no'.")
    return torch.amp.GradScaler(device.type, enabled=mixed_precision == "fp16")
