"""What a trainer remembers besides weights and position: a list of parts, treated alike by save, load and failures.

A checkpoint keeps each part's state under the part's name; a step that fails leaves every part as it was before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

State = Mapping[str, Any]  # plain data, as JSON has it, and tensors


class Part(Protocol):
    """Something with a state of its own."""

    def state(self) -> State:
        """What a resumed run needs to go on as if nothing had happened."""
        ...

    def restore(self, state: State) -> None:
        """Read what `state` gave; an empty state starts anew."""
        ...


@contextmanager
def undone_on_error(parts: Mapping[str, Part]) -> Iterator[None]:
    """An error in here leaves every part as it was."""
    before = {name: part.state() for name, part in parts.items()}
    try:
        yield
    except BaseException:
        for name, part in parts.items():
            part.restore(before[name])
        raise


def split(parts: Mapping[str, Part]) -> tuple[dict[str, dict[str, Any]], dict[str, Tensor]]:
    """The states as a checkpoint keeps them: part -> plain data, and "part.key" -> tensor."""
    plain: dict[str, dict[str, Any]] = {}
    tensors: dict[str, Tensor] = {}
    for name, part in parts.items():
        state = part.state()
        plain[name] = {key: value for key, value in state.items() if not isinstance(value, Tensor)}
        tensors |= {f"{name}.{key}": value for key, value in state.items() if isinstance(value, Tensor)}
    return plain, tensors


def restore(parts: Mapping[str, Part], plain: Mapping[str, State], tensors: Mapping[str, Tensor]) -> None:
    """Give each part what `split` took from it; where one refuses its state, all stay as they were."""
    with undone_on_error(parts):
        for name, part in parts.items():
            own = {key.removeprefix(f"{name}."): x for key, x in tensors.items() if key.startswith(f"{name}.")}
            part.restore({**plain.get(name, {}), **own})
