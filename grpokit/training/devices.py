"""Sets up accelerate: device, mixed precision, trackers.

Only this file depends on accelerate's global state. accelerate does not wrap the modules: the trainer autocasts around
rollout, logprobs and reference, and uses accelerate for the backward pass, the loss scaler and the trackers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from grpokit.errors import UsageError, shown
from grpokit.training.trackers import start

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def find(device: str) -> torch.device:
    """The torch device for a device's name.

    Args:
        device: "auto", "cpu" or "cuda".

    Raises:
        UsageError: the name is unknown, or there is no such device.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device must be 'auto', 'cpu' or 'cuda', got {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device is 'cuda', but torch finds no CUDA device. Use device: auto or cpu.")
    return torch.device("cpu" if device == "cpu" or not torch.cuda.is_available() else "cuda")


def place(modules: Mapping[str, torch.nn.Module], device: torch.device) -> None:
    """Move modules to a device, unless all their parameters are there already; quantised ones may refuse to move.

    Args:
        modules: of a policy.
        device: "cuda" without a number is the current GPU.
    """
    if device == torch.device("cuda"):
        device = torch.device("cuda", torch.cuda.current_device())
    for module in modules.values():
        if any(p.device != device for p in module.parameters()):
            module.to(device)


def is_low_precision(dtype: torch.dtype) -> bool:
    """Whether weights of this dtype have fewer digits than fp32, as bf16 and the integers of a quantised base have."""
    return not dtype.is_floating_point or dtype.itemsize < 4


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done all that was asked of it; what went wrong there is raised here."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def autocast(device: torch.device, mixed_precision: str, *, keep: bool = True) -> AbstractContextManager[Any]:
    """The autocast around a policy's calls; accelerate's own would follow the settings of the latest trainer.

    Args:
        device: where the policy is.
        mixed_precision: "no", "bf16" or "fp16".
        keep: keep copies of weights that train for as long as a call lasts, for modules that are used again.

    Raises:
        UsageError: mixed_precision is another word.
    """
    _check(mixed_precision)
    if mixed_precision not in _DTYPES:
        return nullcontext()
    return torch.autocast(device.type, _DTYPES[mixed_precision], cache_enabled=keep)


def shared_accelerator(
    accelerator: Accelerator | None, mixed_precision: str, device: str, trackers: Sequence[str]
) -> Accelerator | None:
    """The accelerator of another trainer, if there is one.

    Raises:
        UsageError: it has another precision or another kind of device, or there are trackers.
    """
    if accelerator is None:
        return None
    if trackers:
        raise UsageError(
            f"trackers ({', '.join(trackers)}) are the accelerator's, and this one is another trainer's. Give them to "
            "that trainer."
        )
    if not isinstance(accelerator, Accelerator):
        raise UsageError(f"accelerator is {shown(accelerator)}; expected that of another trainer: `other.accelerator`.")
    ours = (mixed_precision, find(device).type)
    theirs = (str(accelerator.mixed_precision), accelerator.device.type)
    if ours != theirs:
        raise UsageError(
            f"The shared accelerator has the precision '{theirs[0]}' on '{theirs[1]}', and this trainer asks for "
            f"'{ours[0]}' on '{ours[1]}'. Give both trainers the same mixed_precision and device."
        )
    return accelerator


def make_accelerator(
    mixed_precision: str, device: str, trackers: Sequence[str], folder: Path | str | None
) -> Accelerator:
    """Set up accelerate for this process.

    Args:
        mixed_precision: "no", "bf16" or "fp16".
        device: "auto", "cpu" or "cuda".
        trackers: accelerate's trackers, by name.
        folder: where trackers write.

    Raises:
        UsageError: a device, precision or tracker is not available.
    """
    on_cpu = find(device).type == "cpu"
    _check(mixed_precision)
    if mixed_precision == "fp16" and on_cpu:
        raise UsageError("mixed_precision 'fp16' needs a GPU; on a CPU use 'no'.")
    if trackers and folder is None:
        raise UsageError(f"Trackers ({', '.join(trackers)}) need a folder to log into.")
    AcceleratorState._reset_state(reset_partial_state=True)  # a notebook may build several trainers in turn
    try:
        accelerator = Accelerator(mixed_precision=mixed_precision, cpu=on_cpu)
    except ValueError as error:
        raise UsageError(f"The devices cannot be set up: {error}") from error
    accelerator.gradient_accumulation_steps = 1  # an environment variable may set another, which scales every loss
    if trackers and folder is not None:
        accelerator.trackers = start(trackers, folder)
    return accelerator


def _check(mixed_precision: str) -> None:
    if mixed_precision not in ("no", *_DTYPES):
        raise UsageError(f"mixed_precision must be 'no', 'bf16' or 'fp16', got {mixed_precision!r}.")
