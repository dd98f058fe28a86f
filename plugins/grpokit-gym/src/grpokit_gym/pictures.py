"""An episode as one picture: frames from its beginning to its end, in rows."""

from __future__ import annotations

import math
from collections.abc import Callable

from PIL import Image

_HEIGHT, _COLUMNS = 120, 3


class Film:
    """Keeps evenly spread frames of an episode whose length is not known before.

    Args:
        count: the most frames.
    """

    def __init__(self, count: int) -> None:
        self._count, self._every, self._seen = count, 1, 0
        self._frames: list[Image.Image] = []

    def add(self, draw: Callable[[], Image.Image]) -> None:
        """Count a step, and draw its frame if it is one in so many."""
        if self._seen % self._every == 0:
            if len(self._frames) == self._count:  # twice as far apart from here on
                self._frames, self._every = self._frames[::2], self._every * 2
            if self._seen % self._every == 0:
                frame = draw()
                width = max(1, frame.width * _HEIGHT // frame.height)
                self._frames.append(frame.resize((width, _HEIGHT)))
        self._seen += 1

    def picture(self) -> Image.Image:
        """The frames in rows of three."""
        width = self._frames[0].width
        columns = min(len(self._frames), _COLUMNS)
        rows = math.ceil(len(self._frames) / _COLUMNS)
        page = Image.new("RGB", (width * columns, _HEIGHT * rows), "white")
        for place, frame in enumerate(self._frames):
            page.paste(frame, (place % _COLUMNS * width, place // _COLUMNS * _HEIGHT))
        return page
