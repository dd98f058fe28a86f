"""The frozen or slowly moving model that a policy is held to.

Under a new adapter it is the base, and costs nothing. Else it is a `grpokit.reference.Twin` of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from peft import PeftModel
from torch import nn

from grpokit.reference import adapter_off


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
