"""Keeps a copy of this process, which a plugin's code has forked, from going on with the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def forks_ended() -> Iterator[None]:
    """Ends a process that leaves this context and did not enter it.

    Code that calls `os.fork()` returns twice. The copy would take the answers of others and write the run's files.
    """
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(0)  # without writing what the run's process holds in its buffers
