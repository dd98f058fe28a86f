"""One process at a time writes to the folder of a run or an evaluation."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from grpokit.errors import UsageError


@contextmanager
def locked(folder: Path, *, work: str = "training in", option: str = "run.dir=...") -> Iterator[None]:
    """Keep other processes from writing to a folder; a killed process releases it too.

    Args:
        folder: of a run or an evaluation.
        work: what this process and others do there, for messages.
        option: what names another folder, for messages.

    Raises:
        UsageError: another process is at work there, or the folder cannot be made.
    """
    path = lock_of(folder)
    new_parents = [place for place in path.parents if not place.exists()]
    lock: BaseFileLock = FileLock(path, timeout=0.2)  # `is_running` may look at it just now
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        with suppress(NotImplementedError):  # a file system without locks
            lock.acquire()
    except Timeout as error:
        owner = " ".join(path.read_text(encoding="utf-8", errors="replace").split())
        raise UsageError(
            f"Another process ({owner}) is {work} {folder}. Wait until it ends, or choose another folder with {option}"
        ) from error
    except OSError as error:
        raise UsageError(f"The folder {folder} cannot be made: {error}.") from error
    try:
        if not isinstance(lock, SoftFileLock):  # which keeps notes of its own in the file
            path.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # a parent that holds the run stays
            for parent in new_parents:
                parent.rmdir()


def lock_of(folder: Path) -> Path:
    """The file next to a run folder that is locked while a process trains there; a link to the folder is the folder."""
    real = Path(os.path.realpath(folder))
    return real.parent / f".{real.name}.lock"


def is_running(folder: Path) -> bool:
    """Whether a process trains in a run folder now; of a killed one at most the unlocked file is left."""
    lock = lock_of(folder)
    try:
        import fcntl

        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (ImportError, OSError):  # it is held, or missing, or nothing can be locked here
        return lock.exists()
    return False
