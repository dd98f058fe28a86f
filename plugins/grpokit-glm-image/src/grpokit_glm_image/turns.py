"""Two halves of a model take turns on a device that need not hold both.

Who is asked for comes, and then stays; the other half waits in the CPU's memory, pinned where the system allows it, so
that it is back soon. Frozen weights that nobody changed are not copied out again. What trains stays on the device,
since an optimizer holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        self._staying: set[Tensor] = set()  # also while another policy learns, and these are frozen

    def leave(self) -> None:
        """Wait in the CPU's memory, but for what has trained when it should have left."""
        for tensor in self._tensors():
            if tensor.requires_grad:
                self._staying.add(tensor)
                self._copies.pop(tensor, None)
            if tensor in self._staying:
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
        for tensor, copy in self._copies.items():
            if tensor.data_ptr() == copy.host.data_ptr():
                tensor.data = copy.host.to(self._device, non_blocking=True, copy=True)
                self._copies[tensor] = _Copy(host=copy.host, place=tensor.data_ptr(), version=tensor._version)

    def _tensors(self) -> Iterator[Tensor]:
        for module in self._modules:
            yield from module.parameters()
            yield from module.buffers()


class Turns:
    """Which half of a model is on the device: the one that was asked for last.

    Args:
        writer: what writes tokens; on the device.
        decoder: what makes pictures of them; on the CPU or on the device.
        device: where both work.
        offload: "idle": only one of them is there at a time; "none": both.
    """

    def __init__(
        self, writer: Sequence[nn.Module], decoder: Sequence[nn.Module], *, device: torch.device, offload: str
    ) -> None:
        self._writer, self._decoder = Half(writer, device), Half(decoder, device)
        self._takes_turns = offload == "idle" and device.type != "cpu"
        self._there: Half | None = None  # who is known to be on the device as a whole
        self.let_write()

    def let_write(self) -> None:
        """Let the writer be on the device."""
        self._let(self._writer, self._decoder)

    def let_paint(self) -> None:
        """Let the decoder be on the device."""
        self._let(self._decoder, self._writer)

    def _let(self, busy: Half, idle: Half) -> None:
        if self._takes_turns and self._there is not busy:
            self._there = None  # in case that memory runs out
            idle.leave()
            busy.enter()
            self._there = busy


def _pinned(values: Tensor) -> Tensor:
    """A copy in the CPU's memory that a GPU can read directly; an ordinary one where the system has no more of it."""
    try:
        host = torch.empty_like(values, device="cpu", pin_memory=True)
    except RuntimeError:
        return values.to("cpu", copy=True)
    return host.copy_(values)
