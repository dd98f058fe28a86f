"""What frozen networks make of pictures to edit, kept from step to step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from PIL.Image import Image

from grpokit.data.digests import digest

T = TypeVar("T")


class Seen(Generic[T]):
    """A function of pictures that is called once for each, whichever object holds its pixels.

    Args:
        see: the function: a picture and whatever else tells results apart -> its result.
        most: results that are kept, the latest ones.
    """

    def __init__(self, see: Callable[..., T], *, most: int) -> None:
        self._see, self._most = see, most
        self._kept: dict[object, T] = {}

    def __call__(self, picture: Image, *more: object) -> T:
        """The result for a picture, which may be shared: it must not be changed."""
        key = (digest(picture), *more)
        if key not in self._kept:
            result = self._see(picture, *more)
            if len(self._kept) >= self._most:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = result
        return self._kept[key]
