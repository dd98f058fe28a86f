"""A closed display, or one that lacks a character, does not end a run: what cannot be shown is dropped."""

from __future__ import annotations

import errno
import io
import sys
from typing import Any

_GONE = (errno.EPIPE, errno.EIO)  # nobody reads any more: a closed pipe or terminal


class _File(io.FileIO):
    """The file behind a stream, which drops what nobody reads."""

    def write(self, data: Any) -> int:
        """As in the base class, but ignores a reader that is gone."""
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return memoryview(data).nbytes


def prepare() -> None:
    """Drop output once nobody reads it, and print a question mark for an unknown character."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and type(getattr(stream.buffer, "raw", stream.buffer)) is io.FileIO:
            lasting = io.TextIOWrapper(
                io.BufferedWriter(_File(stream.fileno(), "w", closefd=False)),
                encoding=stream.encoding,
                errors="replace",
                line_buffering=stream.line_buffering or stream.write_through,  # the second: of python -u
                write_through=stream.write_through,
            )
            setattr(sys, name, lasting)
