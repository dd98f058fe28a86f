"""The type that weights are loaded in, and the device that they are loaded on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from grpokit.errors import UsageError, nearest

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""What configs call the types of a model's numbers."""
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def dtype_of(name: str) -> torch.dtype | None:
    """The type that a setting names, in full or in short as "bf16"; None for any other word."""
    return DTYPES.get(_SHORT.get(name, name))


def check_names(*, dtype: str, device: str | None) -> None:
    """Refuse settings of a type and a device that do not exist.

    Args:
        dtype: one of `DTYPES`, in full or in short, or "auto".
        device: "cpu", "cuda", or None for the GPU if there is one.

    Raises:
        UsageError: there is no such type or device.
    """
    if dtype != "auto" and dtype_of(dtype) is None:
        raise UsageError(
            f"dtype must be 'auto', {', '.join(map(repr, DTYPES))}, got {dtype!r}{nearest(dtype, DTYPES)}."
        )
    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"device must be 'cpu' or 'cuda', got {device!r}. Left out, it is the GPU if there is one.")


def check_device(device: str | None) -> None:
    """Refuse a device that this machine lacks.

    Raises:
        UsageError: torch finds no GPU.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device is 'cuda', but torch finds no CUDA device. Use device: cpu, or leave it out.")


def chosen(name: str, own: object, *, trains_base: bool, device: str) -> torch.dtype:
    """The type to load weights in.

    Args:
        name: the setting. "auto" is the checkpoint's own type, but float32 for weights that are to be trained (an
            optimizer's small steps are lost in bfloat16), and on a CPU that computes the own type only by emulation.
        own: the type of the checkpoint, as its configuration has it; float32 where it has none.
        trains_base: whether the weights themselves will be trained.
        device: "cpu" or "cuda".
    """
    asked = dtype_of(name)
    slow = device == "cpu" and not cpu_has_bfloat16()
    if asked is None:
        return torch.float32 if trains_base or slow or not isinstance(own, torch.dtype) else own
    if asked != torch.float32 and slow:
        warnings.warn(
            f"dtype '{name}' on a CPU without bfloat16 units would be emulated, many times slower than float32; "
            "float32 is used.",
            stacklevel=3,
        )
        return torch.float32
    return asked


@contextmanager
def default_kept() -> Iterator[None]:
    """Behind it, torch's default type is what it was: diffusers changes it for good where a model cannot be built."""
    before = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def cpu_has_bfloat16() -> bool:
    """Whether this machine's CPU multiplies bfloat16 in hardware, as far as torch knows."""
    able = torch.cpu.get_capabilities()
    return any(able.get(unit, False) for unit in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))
