"""A display that is gone, or that knows few characters, ends no command."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

_GONE = (errno.EPIPE, errno.EIO)  # nobody reads any more: a closed pipe or terminal
_SIMPLE = {
    **dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True)),
    **{"±": "+-", "−": "-", "–": "-", "→": "->", "…": "...", "×": "x"},
}
_failed: list[OSError] = []


class _File(io.FileIO):
    """The file behind a stream. After a write that failed, it drops what comes."""

    def write(self, data: Any) -> int:
        """As in the base class, which never fails."""
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in _GONE:
                _failed.append(error)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return memoryview(data).nbytes


def prepare() -> None:
    """Let what is printed be dropped once nobody reads it, and characters that cannot be shown be plain ones."""
    codecs.register_error("plain", _plain)
    for name in ("stdout", "stderr"):
        setattr(sys, name, _lasting(getattr(sys, name)))


def flushed() -> bool:
    """Write what waits; whether all that was printed went to somebody, or to nobody who was left to read it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a reward may have closed it
            stream.flush()
    for error in _failed:
        with suppress(OSError):
            os.write(2, f"error: What was printed could not be written: {error.strerror}.\n".encode())
    return not _failed


def _lasting(stream: TextIO | None) -> TextIO:
    if stream is None:  # it was closed from the start
        return open(os.devnull, "w", encoding="utf-8")
    binary = getattr(stream, "buffer", None)
    raw = getattr(binary, "raw", binary)
    if not isinstance(stream, io.TextIOWrapper) or type(raw) is not io.FileIO:
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_File(raw.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="plain" if stream.errors in ("strict", "backslashreplace") else stream.errors,
        line_buffering=stream.line_buffering or stream.write_through,  # the second: of python -u
        write_through=stream.write_through,
    )


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that cannot be encoded."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_SIMPLE.get(c) or ascii(c)[1:-1] for c in text), error.end
