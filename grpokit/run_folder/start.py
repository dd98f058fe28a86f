"""Starts a run folder: whether a run may begin or continue there, and the folder of a new one."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from grpokit.errors import UsageError
from grpokit.files import delete, writing
from grpokit.run_folder.names import CHECKPOINTS, CONFIG, END, VERSIONS
from grpokit.run_folder.reader import read_rows
from grpokit.training.checkpoint import latest

UNFINISHED = ".unfinished"  # in the folder of a run that is being begun


def can_resume(folder: Path, *, resume: bool, overwrite: bool) -> bool:
    """Whether a run continues from a checkpoint in a folder; if not, a new one may begin there.

    Raises:
        UsageError: the folder holds a run and neither option is given, or one that has ended without its checkpoints;
            it holds something else, or is a file.
    """
    if resume and overwrite:
        raise UsageError("Give either --resume or --overwrite, not both.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"The run folder {folder} is a file. Choose another with run.dir=...")
    names = set()
    if folder.is_dir():
        names = {place.name for place in folder.iterdir()}
    if not names or UNFINISHED in names:
        return False
    missing = [name for name in (VERSIONS, CONFIG) if name not in names]  # a project may have the second
    if missing:
        raise UsageError(
            f"{folder} holds files that are not a run of grpokit: it has no {missing[0]}. Choose another folder with "
            "run.dir=...",
            page="guards#checkpoints",
        )
    if not resume and not overwrite:
        raise UsageError(
            f"{folder} already holds a run. Add --resume to continue it, --overwrite to delete it and start again, or "
            "choose another folder with run.dir=...",
            page="guards#checkpoints",
        )
    has_checkpoint = latest(folder / CHECKPOINTS) is not None
    end = read_rows(folder / END) if resume and not has_checkpoint else []
    if end and end[0]["state"] != "failed":
        raise UsageError(
            f"The run in {folder} is {end[0]['state']}, as its {END} says, but its checkpoints are gone, so it cannot "
            "continue. Add --overwrite to delete it and start again, or choose another folder with run.dir=...",
            page="guards#checkpoints",
        )
    return resume and has_checkpoint


@contextmanager
def initialised(folder: Path, *, resumed: bool, keep: Collection[str] = ()) -> Iterator[None]:
    """Make the folder of a new run, or empty it but for what to `keep`. After an error inside, no more is left of it.

    Until the end it is marked: after a kill it counts as empty.

    Raises:
        RunError: it cannot be emptied or made.
    """
    if resumed:
        yield
        return
    folder = Path(os.path.realpath(folder))  # a link to a run stays a link
    mark = folder / UNFINISHED
    is_new = not folder.exists()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
        _empty(folder, {mark.name, *keep})
    try:
        yield
    except BaseException:
        _empty(folder, {mark.name, *keep})
        mark.unlink()
        if is_new:
            folder.rmdir()
        raise
    mark.unlink()


def _empty(folder: Path, keep: Collection[str]) -> None:
    for place in folder.iterdir():
        if place.name not in keep:
            delete(place)
