"""Files that are whole or not there, and the names of what belongs to a step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place to write a file; it takes the name `path` when the context ends well, and is gone otherwise."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def step_name(step: int) -> str:
    """What the folders of a step are called.

    >>> step_name(12)
    'step_000012'
    """
    return f"step_{step:06d}"


def step_number(name: str) -> int | None:
    """The step that a folder's name says, or None.

    >>> step_number("step_000012"), step_number("best")
    (12, None)
    """
    number = name.removeprefix("step_")
    return int(number) if name.startswith("step_") and number.isdecimal() else None
