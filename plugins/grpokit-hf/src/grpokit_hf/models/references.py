"""The frozen or slowly moving model that a policy is held to.

Under a new adapter it is the base, and costs nothing. Else it is a twin of the model: a second copy of what trains,
which shares what does not, so under an adapter it is a second adapter on the same base. A twin may have a smaller
dtype, wait in the CPU's memory, or follow the policy as an exponential moving average.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import torch
from annotated_types import Ge, Lt
from peft import PeftModel
from torch import Tensor, nn

from grpokit.errors import CheckpointError, UsageError
from grpokit.reference import adapter_off, refuse_shards
from grpokit.registry.settings import read_settings
from grpokit.settings import Count, Settings


class Reference(Protocol):
    """What a policy scores with inside `reference()`.

    Attributes:
        moves: whether it changes during training.
    """

    moves: bool

    def model(self) -> AbstractContextManager[nn.Module]:
        """Inside the context, the model to score with; it is left before the backward pass."""
        ...

    def updated(self, version: int) -> None:
        """Hear that the policy has made `version` optimizer steps in all."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What the policy's own weights do not tell, under names of its own."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take its part of a policy's state; called before the policy's own weights are replaced."""
        ...


@dataclass(frozen=True, kw_only=True)
class Average(Settings):
    """The keys of `reference_ema`.

    Attributes:
        decay: how much of the reference stays at each of its steps: reference = decay * reference + (1 - decay) *
            policy.
        every: optimizer steps from one of its steps to the next.
    """

    decay: Annotated[float, Ge(0), Lt(1)] = 0.99
    every: Count = 1

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Average:
        """The settings of a mapping, such as {"decay": 0.99}.

        Raises:
            UsageError: a key is unknown, or a value is out of bounds.
        """
        return read_settings(cls, given, key="reference_ema", example="{decay: 0.99, every: 1}")


class Base:
    """The model under an adapter.

    Args:
        adapted: the model with its adapter.
    """

    moves = False

    def __init__(self, adapted: PeftModel) -> None:
        self._adapted = adapted

    @contextmanager
    def model(self) -> Iterator[nn.Module]:
        """Inside the context, the same model with the adapter off."""
        with adapter_off(self._adapted):
            yield self._adapted

    def updated(self, version: int) -> None:
        """Nothing: the base never changes."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the base is where it was loaded from."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing."""


class Twin:
    """A copy of what trains.

    It is made when it is first asked for, so that work without a reference costs no memory. That must be while the
    policy has the weights of its start: before an update, and before others are loaded. A trainer does so if its
    objective needs a reference.

    Args:
        live: the policy's model; its parameters are replaced in place, never the object.
        dtype: of the twin's own weights; None for the model's.
        offload: whether they wait in the CPU's memory between two passes.
        average: how it follows the policy; None: it stays.
        name: what its part of a policy's state is called.
    """

    def __init__(
        self,
        live: nn.Module,
        *,
        dtype: torch.dtype | None = None,
        offload: bool = False,
        average: Average | None = None,
        name: str = "reference",
    ) -> None:
        self.moves = average is not None
        self._prefix, self._count = f"{name}/", f"{name}_version"
        self._live, self._dtype, self._offload, self._average = live, dtype, offload, average
        self._twin: nn.Module | None = None
        self._version = 0
        self._replaced = False  # whether the policy has other weights than at its start

    @contextmanager
    def model(self) -> Iterator[nn.Module]:
        """Inside the context, the twin, on the policy's device."""
        if self._twin is None and self._replaced:
            raise UsageError(
                "The reference was asked for only after the policy's weights had changed. Call reference() once before "
                "training and before load_state_dict(), or set a kl_coef from the start."
            )
        twin = self._make()
        device = next(self._live.parameters()).device
        own = self._tensors(twin)
        waiting = [tensor.data for tensor in own]
        for tensor in own:
            tensor.data = tensor.data.to(device)
        try:
            yield twin
        finally:
            if self._offload:
                for tensor, place in zip(own, waiting, strict=True):
                    tensor.data = place

    def updated(self, version: int) -> None:
        """Follow the policy, if a step is due. A version that is known already is one that was loaded."""
        due = self._average is not None and version > self._version and version % self._average.every == 0
        self._version = version
        self._replaced = self._replaced or version > 0
        if not due or self._twin is None:
            return
        assert self._average is not None
        live = dict(self._live.named_parameters())
        with torch.no_grad():
            for name, tensor in _own(self._twin, self._live).items():
                now = _whole(live[name].detach()).to(tensor.device)
                tensor.lerp_(now, 1 - self._average.decay)

    def state_dict(self) -> dict[str, Any]:
        """A reference that moves, if one was asked for; empty for any other."""
        if not self.moves or self._twin is None:
            return {}
        return {**self._named(self._twin), self._count: self._version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a reference that moves, if one was asked for.

        Raises:
            CheckpointError: there is none, or it is of another model.
        """
        self._replaced = True
        if not self.moves or self._twin is None:
            return
        if self._count not in state:
            raise CheckpointError(
                "holds no average of the weights: it was saved without ema, or without reference_ema and a KL."
            )
        own = self._named(self._twin)
        theirs = {name: state[name] for name in state if name.startswith(self._prefix)}
        differing = own.keys() ^ theirs.keys()
        differing |= {name for name in own.keys() & theirs.keys() if own[name].shape != theirs[name].shape}
        if differing:
            raise CheckpointError(f"belongs to another model: '{min(differing)}' differs.")
        for name, tensor in own.items():
            tensor.data.copy_(theirs[name])
        self._version = state[self._count]

    def _make(self) -> nn.Module:
        if self._twin is None:
            self._twin = _twin(self._live, dtype=self._dtype)
            if self._offload:
                for tensor in self._tensors(self._twin):
                    tensor.data = tensor.data.cpu()
        return self._twin

    def _tensors(self, twin: nn.Module) -> list[Tensor]:
        """What a twin does not share with the model: parameters and buffers."""
        return [*_own(twin, self._live).values(), *_own_buffers(twin, self._live)]

    def _named(self, twin: nn.Module) -> dict[str, Tensor]:
        """Its parameters by their names in a policy's state."""
        own = _own(twin, self._live)
        return {self._prefix + name: tensor for name, tensor in own.items()}


def _twin(live: nn.Module, *, dtype: torch.dtype | None) -> nn.Module:
    """A copy in eval mode that shares what does not train.

    Frozen layers are shared as a whole. A layer of bitsandbytes keeps its weights beside its parameters as well, and
    FSDP2 puts parts in their place.
    """
    refuse_shards(live)
    frozen: list[Any] = [p for p in live.parameters() if not p.requires_grad]
    frozen += [m for m in live.modules() if _is_frozen(m)]
    shared = {id(each): each for each in frozen}
    twin = copy.deepcopy(live, shared).eval()
    for tensor in _own(twin, live).values():
        tensor.requires_grad_(False)
        if dtype is not None and tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return twin


def _is_frozen(module: nn.Module) -> bool:
    """Whether a module has parameters, and none of them trains."""
    trains = [p.requires_grad for p in module.parameters()]
    return bool(trains) and not any(trains)


def _whole(tensor: Tensor) -> Tensor:
    """A whole tensor, also where each process has only a part of it; then all must ask."""
    part: Any = tensor
    result: Tensor = part.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return result


def _own_buffers(twin: nn.Module, live: nn.Module) -> list[Tensor]:
    """The buffers of a twin that are not the policy's as well."""
    shared = {id(x) for x in live.buffers()}
    return [x for x in twin.buffers() if id(x) not in shared]


def _own(twin: nn.Module, live: nn.Module) -> dict[str, Tensor]:
    """The parameters of a twin that are not the policy's as well."""
    shared = {id(p) for p in live.parameters()}
    return {name: p for name, p in twin.named_parameters() if id(p) not in shared}
