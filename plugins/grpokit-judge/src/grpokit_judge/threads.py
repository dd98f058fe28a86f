"""Calls in threads that keep nobody waiting.

The interpreter would wait for the threads of concurrent.futures before it ends.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Iterable[Item], *, most: int) -> list[Future[Result]]:
    """Start a call for each item, and return at once.

    Args:
        function: of one item.
        items: in the order in which they are begun.
        most: calls at the same time.

    Returns:
        A future for each item, in their order.
    """
    jobs: queue.SimpleQueue[tuple[Item, Future[Result]]] = queue.SimpleQueue()
    futures: list[Future[Result]] = []
    for item in items:
        futures.append(Future())
        jobs.put((item, futures[-1]))

    def work() -> None:
        while True:
            try:
                item, future = jobs.get_nowait()
            except queue.Empty:
                return
            try:
                future.set_result(function(item))
            except BaseException as error:
                future.set_exception(error)

    for _ in range(min(most, len(futures))):
        threading.Thread(target=work, name="vlm-judge", daemon=True).start()
    return futures
