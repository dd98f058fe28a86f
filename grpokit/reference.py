"""The frozen reference of a policy: a copy of its weights, or the base model under an adapter."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from grpokit.errors import UsageError

M = TypeVar("M", bound=nn.Module)


def frozen_copy(module: M, *, dtype: torch.dtype | None = None) -> M:
    """Copy a module, in eval mode and with parameters that need no gradient: a reference without LoRA.

    Args:
        module: stays as it is.
        dtype: of the copy's floating-point parameters and buffers, such as `torch.bfloat16` for half the memory; None
            keeps each one's own. The KL then also measures the rounding.

    Raises:
        UsageError: several processes hold the weights together already.
    """
    refuse_shards(module)
    copied = copy.deepcopy(module).eval().requires_grad_(False)
    return copied if dtype is None else copied.to(dtype=dtype)


def refuse_shards(module: nn.Module) -> None:
    """Make sure that the module's weights are whole in this process.

    Raises:
        UsageError: this process has only a part of them.
    """
    if any(hasattr(p, "to_local") for p in module.parameters()):
        raise UsageError(
            "The frozen reference must be copied before the policy's weights are spread over the processes. With "
            "phases, give a kl_coef to the first one that trains this policy, or leave out run.sharding."
        )


@contextmanager
def swapped(owner: object, attribute: str, value: object) -> Iterator[None]:
    """Inside the context `owner.attribute` is `value`. Afterwards, even after an error, it has its former value."""
    live = getattr(owner, attribute)
    setattr(owner, attribute, value)
    try:
        yield
    finally:
        setattr(owner, attribute, live)


class HasAdapter(Protocol):
    """A model with a removable adapter, such as a `peft.PeftModel`."""

    def disable_adapter(self) -> AbstractContextManager[Any]:
        """Inside this context the model is its base model."""
        ...


def adapter_off(model: HasAdapter) -> AbstractContextManager[Any]:
    """The reference of a LoRA policy: the base model with the adapter off, without a second copy of the weights."""
    return model.disable_adapter()
