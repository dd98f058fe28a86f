"""Reads texts that a person wrote, writes files that are complete or do not exist, and names a step's folders."""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from grpokit.errors import RunError, UsageError, brief, one_line

_UMASK = os.umask(0o077)  # it can be read only by setting it
os.umask(_UMASK)

_DEEPEST = 100  # of JSON: what copies, compares and records it calls itself for each level

PLAIN_NAME = "letters, digits, - and _, at most 40"


def _read_bytes(path: Path, *, most: int = 2**30) -> bytes:
    """The bytes of a regular file with at most `most`; reading a pipe or a device might never end."""
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):  # reading the second says what it is
        raise OSError("it is not a regular file")
    if status.st_size > most:
        raise OSError(f"it is longer than {most / 2**20:g} MiB")
    return path.read_bytes()


def read_text(path: Path, *, kind: str, error: type[UsageError], remedy: str = "", most: int = 2**30) -> str:
    """The text of a file that a person wrote, without a byte-order mark.

    Args:
        path: the file.
        kind: what messages call it, such as "config file".
        error: the error to raise.
        remedy: a sentence on what to do where the file is missing.
        most: bytes that it may have.

    Raises:
        UsageError: of the class `error`: the file is missing, a folder or a pipe, too large, or not UTF-8.
    """
    name = brief(str(path), most=1000)[1:-1]
    name = re.sub(r"^(\w{2,}):/(?!/)", r"\1://", name)  # a Path drops a slash of an address
    if "://" in name:
        remedy = "It is an address: download it and give the file."
    try:
        text = _read_bytes(path, most=most).decode("utf-8-sig")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError as cause:
        raise error(f"The {kind} {name} does not exist (looked in {Path.cwd()}).{remedy and f' {remedy}'}") from cause
    except IsADirectoryError as cause:
        raise error(f"{name} is a folder; expected a {kind}.") from cause
    except (OSError, ValueError) as cause:  # the second: not UTF-8, or a name that no file can have
        coded = " Save it as UTF-8." if isinstance(cause, UnicodeDecodeError) else ""
        raise error(f"The {kind} {name} cannot be read as UTF-8 text: {one_line(cause)}.{coded}") from cause


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """A temporary path for a new file or folder: renamed to `path` at the end, or deleted after an error.

    Args:
        path: the final name. A file of this name is replaced; a folder must be moved away inside the context.
        shared: whether other processes may write the same file at the same time; the last one wins.
    """
    temporary = partial_of(path, writer=writer_of(os.getpid()) if shared else "")
    for left in (temporary, *_left_by_killed_writers(path)):
        delete(left)
    try:
        yield temporary
        share(temporary)
        os.replace(temporary, path)
    finally:
        delete(temporary)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside, a full disk or a folder without permission is an error of the run.

    Raises:
        RunError: names what could not be written.
    """
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}.") from error


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing; an unpaired surrogate, which UTF-8 cannot hold, as its JSON escape.

    Raises:
        RunError: it cannot be written.
    """
    with writing(path), replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def share(place: Path) -> None:
    """Let others read a file, or all in a folder, as the umask allows; libraries keep what they write to the owner.

    Args:
        place: the file or folder. Any other permissions stay as they were set.
    """
    for path in place.rglob("*") if place.is_dir() else (place,):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode in (0o600, 0o700) and not path.is_symlink():
            path.chmod((mode | mode >> 3 | mode >> 6) & ~_UMASK)


def partial_of(path: Path, *, writer: str = "") -> Path:
    """The temporary path that `replacing` renames to `path`."""
    return path.with_name(f".{path.name}.{writer}{'.' * bool(writer)}partial")


def writer_of(process: int) -> str:
    """The name of a process of this machine: others may share its folders."""
    return f"{platform.node()}-{process}"


def _left_by_killed_writers(path: Path) -> list[Path]:
    """The temporary files of shared writers of this machine that are gone."""
    before, behind = partial_of(path, writer=writer_of(0)).name.rsplit("0", 1)
    left = []
    for partial in path.parent.glob(f"{glob.escape(before)}*{behind}"):
        process = partial.name.removeprefix(before).removesuffix(behind)
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            left.append(partial)
    return left


def delete(path: Path) -> None:
    """Delete a file or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """What a JSON file of a run holds; a link is not followed.

    Raises:
        OSError: it cannot be read.
        ValueError: as `parse_json`.
    """
    if path.is_symlink():
        raise OSError("it is a link, and a run has none")
    return parse_json(_read_bytes(path))


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has an object in which a key appears twice.
    """
    too_deep = f"it is nested too deeply, at more than {_DEEPEST} levels"
    try:
        content = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(too_deep) from None
    if _depth(content) > _DEEPEST:
        raise ValueError(too_deep)
    return content


def _depth(content: Any) -> int:
    """How many lists and objects are inside each other."""
    depth = 0
    parts = [content]
    while nested := [part for part in parts if isinstance(part, (dict, list))]:
        depth += 1
        parts = []
        for part in nested:
            parts += part.values() if isinstance(part, dict) else part
    return depth


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {brief(twice)} appears twice")
    return content


def is_plain_name(name: object) -> bool:
    """Whether a folder can have this name on any system: `PLAIN_NAME` describes such names."""
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", name) is not None


def step_name(step: int) -> str:
    """The name of a step's folders.

    >>> step_name(12)
    'step_000012'
    """
    return f"step_{step:06d}"


def step_number(name: str) -> int | None:
    """The step in a folder's name, or None.

    >>> step_number("step_000012"), step_number("best")
    (12, None)
    """
    number = name.removeprefix("step_")
    return int(number) if name.startswith("step_") and number.isdecimal() else None


def step_folders(parent: Path) -> list[tuple[int, Path]]:
    """(step, folder) of all folders `step_...` in a folder, in the order of the steps."""
    numbers = ((step_number(place.name), place) for place in parent.glob("step_*"))
    return sorted((number, place) for number, place in numbers if number is not None)
