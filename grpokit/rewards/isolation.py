"""Keeps rewards apart: no other reward sees what one of them changes in place.

A reward may shrink a picture in place, pop from a prompt's `meta`, or set torch's default dtype. Each call therefore
gets copies of what the policy drew, and what it changes of torch's global state is restored after the call. Worlds and
environments, which a policy calls, may change torch's state as well.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image

from grpokit.errors import RunError, error_line, raised_at
from grpokit.types import Sample


def own_copies(samples: Sequence[Sample]) -> list[Sample]:
    """Samples that a reward may change: its own copies of pictures, arrays, tensors, lists, dicts and sets.

    What samples share, their copies share, too. Dataclasses are copied field by field. Objects of other classes are
    shared, since copying them may cost anything.
    """
    copies: dict[int, Any] = {}  # by the original's id
    return [_copied(sample, copies) for sample in samples]


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    if id(value) not in copies:
        try:
            copies[id(value)] = _new(value, copies)
        except OSError:  # a picture whose file cannot be read; the reward will say so
            copies[id(value)] = value
    return copies[id(value)]


def _new(value: Any, copies: dict[int, Any]) -> Any:
    if isinstance(value, (Image.Image, set)):
        return value.copy()
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, tuple):  # a named tuple's own constructor takes other arguments
        return tuple.__new__(type(value), [_copied(part, copies) for part in value])
    if isinstance(value, list):
        return [_copied(part, copies) for part in value]
    if isinstance(value, dict):
        return {key: _copied(part, copies) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        record = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(record, field.name, _copied(getattr(value, field.name), copies))  # it may be frozen
        return record
    return value


@contextmanager
def torch_state_kept() -> Iterator[None]:
    """Restores torch's global state at the end; inside, gradients are off and float32 convolutions are not TF32."""
    before = [read() for read, _ in _STATE]
    try:
        _CUDNN.allow_tf32 = False
        with torch.no_grad():
            yield
    finally:
        for (read, write), value in zip(_STATE, before, strict=True):
            if read() != value:
                write(value)


@contextmanager
def outside_code(what: str, *, remedy: str = "") -> Iterator[None]:
    """Inside runs code of others, such as a world's: torch's global state is kept, and an error is one message.

    Args:
        what: the beginning of the message, such as "The world 'shop' failed in facts".
        remedy: its end.

    Raises:
        RunError: the code raised anything but Ctrl-C and exit, such as asyncio's CancelledError; its cause is that.
    """
    try:
        with torch_state_kept():
            yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise RunError(f"{what}: {error_line(error)} {raised_at(error)}. {remedy}".rstrip()) from error


def _set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # None: as if nobody had set one


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set for one backend, and torch refuses to say it for all
        return "different for each backend"


def _set_matmul_precision(precision: str) -> None:
    with suppress(RuntimeError):
        torch.set_float32_matmul_precision(precision)


_CUDNN = torch.backends.cudnn
_STATE: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, _set_default_device),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (_matmul_precision, _set_matmul_precision),
    *(
        (partial(getattr, backend, name), partial(setattr, backend, name))
        for backend, name in [
            (torch.backends.mkldnn, "enabled"),
            *((_CUDNN, name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")),
        ]
    ),
]
