"""How everything that a run needs to continue is kept: one protocol, torch's.

A checkpoint is a mapping from names to such parts: policies, optimizers, guards, forced sizes, the position. A failed
step leaves the small ones as they were before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from grpokit.errors import RunError, UsageError, error_line

State: TypeAlias = Mapping[str, Any]
"""Names of letters, digits and . _ / - to tensors, and to plain data as JSON has it."""


@runtime_checkable
class Stateful(Protocol):
    """Something with its own state."""

    def state_dict(self) -> State:
        """Everything that a resumed run needs to continue exactly."""
        ...

    def load_state_dict(self, state: State, /) -> None:
        """Load a result of `state_dict`."""
        ...


def split(name: str, part: Stateful) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a part's state, and its plain data.

    Raises:
        RunError: it is none that a checkpoint can hold.
    """
    try:
        state = dict(part.state_dict())
        tensors = {key: x for key, x in state.items() if isinstance(x, Tensor)}
        plain = {key: x for key, x in state.items() if key not in tensors}
        json.dumps(plain)
    except Exception as error:
        raise RunError(
            f"No checkpoint can hold the state of {name}: state_dict() should give tensors by name, and plain data as "
            f"JSON has it; it raised {error_line(error)}."
        ) from error
    return tensors, plain


def stateful(kind: str, components: Mapping[str, object]) -> dict[str, Stateful]:
    """Those that have a state, by names such as "observers/NAME".

    Raises:
        UsageError: one has only one of the two methods, so a resumed run would silently start it anew.
        RunError: no checkpoint can hold the state of one.
    """
    for name, component in components.items():
        if hasattr(component, "state_dict") != hasattr(component, "load_state_dict"):
            has, lacks = "state_dict", "load_state_dict"
            if not hasattr(component, has):
                has, lacks = lacks, has
            raise UsageError(f"{kind}/{name} has {has} but no {lacks}. A resumed run needs both.")
    parts = {f"{kind}/{name}": part for name, part in components.items() if isinstance(part, Stateful)}
    for name, part in parts.items():
        split(name, part)  # better now than after hours
    return parts


@contextmanager
def undone_on_error(parts: Mapping[str, Stateful]) -> Iterator[None]:
    """Restore every part after an error inside the context."""
    before = {name: part.state_dict() for name, part in parts.items()}
    try:
        yield
    except BaseException:
        for name, part in parts.items():
            part.load_state_dict(before[name])
        raise
