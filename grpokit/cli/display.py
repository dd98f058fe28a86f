"""A display that is closed or full, or lacks a character, does not end a run: what cannot be shown is dropped."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

_GONE = (errno.EPIPE, errno.EIO)  # nobody reads any more: a closed pipe or terminal
_incomplete: set[int] = set()  # the streams of this process that lack something for another reason, such as a full disk


class _File(io.FileIO):
    """The file behind a stream, which drops what cannot be written."""

    def write(self, data: Any) -> int:
        """As in the base class, but tells the first failure of standard output on standard error, and goes on."""
        try:
            return super().write(data) or 0
        except OSError as error:
            stream = self.fileno()
            if error.errno not in _GONE and stream not in _incomplete:
                _incomplete.add(stream)
                if stream != sys.stderr.fileno():
                    print(f"error: what is printed is lost from here on: {error.strerror}", file=sys.stderr)
            return memoryview(data).nbytes


def prepare_streams() -> None:
    """Drop output that cannot be written, and print a question mark for an unknown character."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by who began this process; the number must not go to a file of the run
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and type(getattr(stream.buffer, "raw", stream.buffer)) is io.FileIO:
            lasting = io.TextIOWrapper(
                io.BufferedWriter(_File(stream.fileno(), "w", closefd=False)),
                encoding=stream.encoding,
                errors="replace",
                line_buffering=stream.line_buffering or stream.write_through,  # the second: of python -u
                write_through=stream.write_through,
            )
            setattr(sys, name, lasting)


def complete() -> bool:
    """Whether standard output has all that was printed, or nobody to read it."""
    sys.stdout.flush()
    return not _incomplete
