"""Two halves of a model take turns on a device that need not hold both.

The idle half waits in the CPU's memory, pinned where the system allows it, so that it is back soon. Frozen weights that
nobody changed are not copied out again. What trains stays on the device, since an optimizer holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class _Copy:
    """A tensor's values on the CPU, with what tells whether those on the device have changed since.

    Attributes:
        host: the values.
        place: where in the device's memory they were put.
        version: how often they had been changed in place by then.
    """

    host: Tensor
    place: int
    version: int


class Half:
    """Modules that are moved together.

    Args:
        modules: on the device or on the CPU.
        device: where they work.
    """

    def __init__(self, modules: Sequence[nn.Module], device: torch.device) -> None:
        self._modules, self._device = modules, device
        self._copies: dict[Tensor, _Copy] = {}

    def leave(self) -> None:
        """Wait in the CPU's memory."""
        for tensor in self._tensors():
            if tensor.requires_grad:
                continue
            copy = self._copies.get(tensor)
            if copy is None:
                host = _pinned(tensor.data) if self._device.type == "cuda" else tensor.data.clone()
            else:
                host = copy.host
                if (copy.place, copy.version) != (tensor.data_ptr(), tensor._version):
                    host.copy_(tensor.data)
            tensor.data = host
            self._copies[tensor] = _Copy(host=host, place=host.data_ptr(), version=tensor._version)

    def enter(self) -> None:
        """Come to the device."""
        for tensor in self._tensors():
            copy = self._copies.get(tensor)
            if copy is not None:
                tensor.data = copy.host.to(self._device, non_blocking=True, copy=True)
                self._copies[tensor] = _Copy(host=copy.host, place=tensor.data_ptr(), version=tensor._version)

    def _tensors(self) -> Iterator[Tensor]:
        for module in self._modules:
            yield from module.parameters()
            yield from module.buffers()


class Turns:
    """Which half of a model is on the device: outside of all contexts the writer, so that it can be trained.

    Args:
        writer: what writes tokens.
        decoder: what makes pictures of them; on the CPU or on the device.
        device: where both work.
        offload: "idle": only one of them is there at a time; "none": both.

    Attributes:
        offload: the same.
    """

    def __init__(
        self, writer: Sequence[nn.Module], decoder: Sequence[nn.Module], *, device: torch.device, offload: str
    ) -> None:
        self._writer, self._decoder = Half(writer, device), Half(decoder, device)
        self.offload = offload
        self._takes_turns = offload == "idle" and device.type != "cpu"
        self._decoding = False  # whether the decoder is on the device
        self._inside: list[bool] = []  # for each context that is open, the same
        if self._takes_turns:
            self._decoder.leave()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Inside, the writer is on the device, even if this is inside of `decoding`."""
        with self._turn(decoding=False):
            yield

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Inside, the decoder is on the device."""
        with self._turn(decoding=True):
            yield

    @contextmanager
    def _turn(self, *, decoding: bool) -> Iterator[None]:
        self._inside.append(decoding)
        try:
            self._let(decoding=decoding)
            yield
        finally:
            self._inside.pop()
            self._let(decoding=self._inside[-1] if self._inside else False)

    def _let(self, *, decoding: bool) -> None:
        if decoding == self._decoding or not self._takes_turns:
            return
        idle, busy = (self._writer, self._decoder) if decoding else (self._decoder, self._writer)
        try:
            idle.leave()
            busy.enter()
        except BaseException:  # memory ran out: what was said to be there before is there again
            busy.leave()
            idle.enter()
            raise
        self._decoding = decoding


def _pinned(values: Tensor) -> Tensor:
    """A copy in the CPU's memory that a GPU can read directly; an ordinary one where the system has no more of it."""
    try:
        host = torch.empty_like(values, device="cpu", pin_memory=True)
    except RuntimeError:
        return values.to("cpu", copy=True)
    return host.copy_(values)
