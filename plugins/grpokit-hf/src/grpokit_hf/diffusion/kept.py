"""What frozen networks made of texts and of pictures to edit, kept from step to step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from grpokit.data import digest

T = TypeVar("T", Tensor, tuple[Tensor, ...])


class Kept:
    """Results that are made once; a picture is known by its pixels, whichever object has them.

    Args:
        most: bytes of results. Beyond them, the one that was not asked for longest goes first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._results: dict[object, Tensor | tuple[Tensor, ...]] = {}

    def __call__(self, make: Callable[..., T], *arguments: object) -> T:
        """What `make` returns for texts, numbers and pictures; it is shared, and must not be changed."""
        key = make, digest(arguments)
        if key not in self._results:
            self._results[key] = make(*arguments)
            while len(self._results) > 1 and self._used() > self._most:
                del self._results[next(iter(self._results))]
        self._results[key] = self._results.pop(key)
        return self._results[key]  # type: ignore[return-value]  # of the same `make`

    def _used(self) -> int:
        return sum(map(_bytes, self._results.values()))


def _bytes(result: Tensor | tuple[Tensor, ...]) -> int:
    return result.nbytes if isinstance(result, Tensor) else sum(part.nbytes for part in result)
