"""What Ctrl-C and SIGTERM do while a run goes on; only the main thread hears them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from grpokit.rewards.asking import ENDING


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """The first Ctrl-C or SIGTERM sets the event, so that the step under way is finished; a second ends it at once."""
    stop = threading.Event()

    def handle(signum: int, frame: Any) -> None:
        if stop.is_set():
            signal.default_int_handler(signum, frame)
        stop.set()
        ENDING.set()

    try:
        with handled(handle, signal.SIGINT, signal.SIGTERM):
            yield stop
    finally:
        ENDING.clear()


@contextmanager
def without_sigterm() -> Iterator[None]:
    """Inside, SIGTERM does nothing: torchrun sends it as soon as another process is lost, and this one has to save."""
    with handled(signal.SIG_IGN, signal.SIGTERM):
        yield


@contextmanager
def handled(handler: Callable[[int, Any], Any] | signal.Handlers, *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals in here."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
