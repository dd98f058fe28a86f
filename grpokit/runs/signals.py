"""What Ctrl-C, SIGTERM and SIGHUP (a closed terminal) do during a run; only the main thread gets them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from grpokit.rewards.remote import ENDING

ENDS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stopping(*, tell: bool) -> Iterator[threading.Event]:
    """The first signal sets the event, so that the step under way is finished; a second ends it at once.

    But for another SIGHUP: a shell and its terminal both send one. Ctrl-C is answered with a line on stderr, if `tell`.
    """
    stop = threading.Event()

    def handle(signum: int, frame: Any) -> None:
        if stop.is_set() and signum != signal.SIGHUP:
            signal.default_int_handler(signum, frame)
        if tell and signum == signal.SIGINT:  # by os.write, since a print may be at work
            os.write(2, b"\nThe run stops after this step. Ctrl-C again stops it at once and loses the step.\n")
        stop.set()
        ENDING.set()

    try:
        with handled(handle, signal.SIGINT, *ENDS):
            yield stop
    finally:
        ENDING.clear()


@contextmanager
def handled(handler: Callable[[int, Any], Any] | signal.Handlers, *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals inside; `nohup` keeps SIGHUP away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    for number in numbers:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
