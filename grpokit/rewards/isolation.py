"""Keeps rewards apart: nobody else sees what one of them changes in place.

A reward may shrink a picture in place, pop from a prompt's `meta`, set torch's default dtype, or change the working
directory. Each call therefore gets copies of what the policy drew, and finds the state of the process as the run has
it; what it changes there is restored after the call.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image

from grpokit.errors import RewardError
from grpokit.types import Sample

_Copies: TypeAlias = dict[int, Any]  # by the original's id, so that what samples share their copies share, too
_UNCHANGING = (str, bytes, int, float, complex, type(None))


def own_copies(samples: Sequence[Sample]) -> list[Sample]:
    """Samples that a reward may change: nobody else holds their pictures, arrays, tensors, lists, dicts and sets.

    Dataclasses are copied field by field. Objects of other classes are shared, since copying them may cost anything.
    """
    copies: _Copies = {}
    return [_copied(sample, copies) for sample in samples]


def _copied(value: Any, copies: _Copies) -> Any:
    if isinstance(value, _UNCHANGING):
        return value
    if id(value) not in copies:
        try:
            copies[id(value)] = _new(value, copies)
        except Exception:  # of a file that cannot be read, or of somebody's class: the reward gets the value itself
            copies[id(value)] = value
    return copies[id(value)]


def _new(value: Any, copies: _Copies) -> Any:
    if isinstance(value, Image.Image):
        return value.copy()
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, tuple):
        parts = [_copied(part, copies) for part in value]
        return tuple.__new__(type(value), parts)  # a named tuple's own constructor takes other arguments
    if isinstance(value, (list, dict, set, bytearray)):
        new = copies[id(value)] = copy.copy(value)  # known before its parts are, one of which may be the value itself
        if isinstance(new, list):
            new[:] = [_copied(part, copies) for part in new]
        elif isinstance(new, dict):
            new.update({key: _copied(part, copies) for key, part in new.items()})
        return new
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        record = copies[id(value)] = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(record, field.name, _copied(getattr(value, field.name), copies))  # it may be frozen
        return record
    return value


@contextmanager
def process_state_kept(changes: list[str]) -> Iterator[None]:
    """Restores the state of torch and of the process at the end; gradients are off inside.

    Args:
        changes: the names of what was changed are added to it.

    A fork that comes out of here ends, so that no second process goes on with the run.

    Raises:
        RewardError: something cannot be restored.
    """
    process = os.getpid()
    before = {name: read() for name, (read, _) in _STATE.items()}
    inference = torch.is_inference_mode_enabled()
    try:
        with torch.inference_mode(inference), torch.no_grad():  # which restore both at their end
            try:
                yield
            finally:
                changes += ["torch's grad mode"] if torch.is_grad_enabled() else []
                changes += ["torch's inference mode"] if torch.is_inference_mode_enabled() != inference else []
    finally:
        if os.getpid() != process:
            os._exit(1)
        for name, (read, write) in _STATE.items():
            if read() != before[name]:
                changes.append(name)
                write(before[name])
                if read() != before[name]:
                    raise RewardError(f"{name} was changed from {before[name]} to {read()} and cannot be reset")


def _set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # None: as if nobody had set one


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(state: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(state[0], warn_only=state[1])


def _backends() -> tuple[Any, ...]:
    mkldnn, cudnn = torch.backends.mkldnn, torch.backends.cudnn
    return mkldnn.enabled, cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32


def _set_backends(state: tuple[Any, ...]) -> None:
    mkldnn, cudnn = torch.backends.mkldnn, torch.backends.cudnn
    mkldnn.enabled, cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = state


_DEVICES = ("cpu", "cuda")


def _autocast() -> tuple[int, list[tuple[bool, torch.dtype]]]:
    """How many contexts are open, and what each kind of device has."""
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return nesting, [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]


def _set_autocast(state: tuple[int, list[tuple[bool, torch.dtype]]]) -> None:
    nesting, devices = state
    for device, (enabled, dtype) in zip(_DEVICES, devices, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    for _ in range(_autocast()[0] - nesting):  # with one left open, casts of weights would outlive their update
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set for one backend, and torch refuses to say it for all
        return "different for each backend"


def _set_matmul_precision(precision: str) -> None:
    with suppress(RuntimeError):
        torch.set_float32_matmul_precision(precision)


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "one that was deleted"


def _set_directory(place: str) -> None:
    with suppress(OSError):  # where it was deleted meanwhile, the caller says so
        os.chdir(place)


def _handlers() -> list[Any]:
    return [signal.getsignal(number) for number in _SIGNALS]


def _set_handlers(handlers: list[Any]) -> None:
    if threading.current_thread() is threading.main_thread():  # others cannot have changed them
        for number, handler in zip(_SIGNALS, handlers, strict=True):
            if handler is not None:  # of a C library
                signal.signal(number, handler)


def _closed_streams() -> list[bool]:
    return [bool(getattr(getattr(sys, name), "closed", False)) for name in _STREAMS]


def _set_streams(closed: list[bool]) -> None:
    for number, (name, was_closed) in enumerate(zip(_STREAMS, closed, strict=True), 1):
        if not was_closed and getattr(sys, name).closed:
            with suppress(OSError):  # where the stream's number was closed as well, the caller says so
                stream = open(number, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115  # it stays
                setattr(sys, name, stream)


_STREAMS = ("stdout", "stderr")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": (torch.get_default_device, _set_default_device),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's deterministic mode": (_deterministic, _set_deterministic),
    "torch's matmul precision": (_matmul_precision, _set_matmul_precision),
    "torch's oneDNN or cuDNN": (_backends, _set_backends),
    "torch's autocast": (_autocast, _set_autocast),
    "the working directory": (_directory, _set_directory),
    "the handling of signals": (_handlers, _set_handlers),
    "stdout or stderr (it closed one)": (_closed_streams, _set_streams),
}
