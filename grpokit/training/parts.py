"""The state of a trainer besides weights and position, as a mapping of parts.

A checkpoint stores each part's state under the part's name. A failed step leaves every part as it was before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

State = Mapping[str, Any]  # plain data, as JSON has it, and tensors


class Part(Protocol):
    """Something with its own state."""

    def state(self) -> State:
        """Everything that a resumed run needs to continue exactly."""
        ...

    def restore(self, state: State) -> None:
        """Take over a result of `state`; an empty one resets the part."""
        ...


@contextmanager
def undone_on_error(parts: Mapping[str, Part]) -> Iterator[None]:
    """Restore every part after an error inside the context."""
    before = {name: part.state() for name, part in parts.items()}
    try:
        yield
    except BaseException:
        for name, part in parts.items():
            part.restore(before[name])
        raise


def split(parts: Mapping[str, Part]) -> tuple[dict[str, dict[str, Any]], dict[str, Tensor]]:
    """The states as a checkpoint stores them: part -> plain data, and "part.key" -> tensor."""
    plain: dict[str, dict[str, Any]] = {}
    tensors: dict[str, Tensor] = {}
    for name, part in parts.items():
        state = part.state()
        plain[name] = {key: value for key, value in state.items() if not isinstance(value, Tensor)}
        tensors |= {f"{name}.{key}": value for key, value in state.items() if isinstance(value, Tensor)}
    return plain, tensors


def restore(parts: Mapping[str, Part], plain: Mapping[str, State], tensors: Mapping[str, Tensor]) -> None:
    """Undo `split`; if one part refuses its state, all parts stay as they were."""
    with undone_on_error(parts):
        for name, part in parts.items():
            own = {key.removeprefix(f"{name}."): x for key, x in tensors.items() if key.startswith(f"{name}.")}
            part.restore({**plain.get(name, {}), **own})
