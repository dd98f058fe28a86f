"""Files that are whole or not there, and the names of what belongs to a step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """A place for a new file or folder; it takes the name `path` when the context ends well, and is gone otherwise.

    Args:
        path: its later name. A file of this name is replaced; a folder has to be moved away in the context.
        shared: another process may write the same file at the same time; the last one that finishes wins.
    """
    temporary = partial_of(path, writer=str(os.getpid()) if shared else "")
    delete(temporary)  # a killed process may have left it
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        delete(temporary)


def partial_of(path: Path, *, writer: str = "") -> Path:
    """Where `replacing` writes what will be called `path`."""
    return path.with_name(f".{path.name}.{writer}{'.' * bool(writer)}partial")


def delete(path: Path) -> None:
    """Delete a file or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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


def step_folders(parent: Path) -> list[tuple[int, Path]]:
    """(step, folder) of all `step_...` in a folder, in the order of the steps."""
    numbers = ((step_number(place.name), place) for place in parent.glob("step_*"))
    return sorted((number, place) for number, place in numbers if number is not None)
