"""Forward methods of modules, replaced for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Forward = Callable[[Tensor], Tensor]


@contextmanager
def replaced_forwards(forwards: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Inside the context, modules have these forward methods; afterwards they have those that they had before."""
    changed: list[tuple[nn.Module, Any]] = []
    try:
        for module, forward in forwards:
            changed.append((module, vars(module).get("forward")))
            module.forward = forward  # an attribute, which hides the class's method
        yield
    finally:
        for module, before in reversed(changed):
            if before is None:
                del module.forward
            else:  # someone else had replaced it, such as accelerate
                module.forward = before


def flat(product: Forward) -> Forward:
    """A product of [n, K] for x [..., K]."""

    def forward(x: Tensor) -> Tensor:
        y = product(x.reshape(-1, x.shape[-1]))
        return y.view(*x.shape[:-1], y.shape[-1])

    return forward
