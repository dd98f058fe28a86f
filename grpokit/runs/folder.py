"""A run folder: who may write there, and its header.

A lock beside the folder lets one process at a time train in it. The header says what was started: `versions.json`
(packages and own code that took part), `data.json` (digests of the prompts) and `config.yaml` (resolved). `config.yaml`
comes last, so that a folder which has it is a run. A folder with a part of the header is a set-up that was killed, and
may be used again.
"""

from __future__ import annotations

import ast
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

import grpokit
from grpokit import registry
from grpokit.config import yaml_source
from grpokit.config.schema import RunConfig, resolved
from grpokit.data.digests import digest
from grpokit.errors import RunError, UsageError
from grpokit.files import delete, lock_of, partial_of, read_json, replacing
from grpokit.report import MACHINE

VERSIONS, DATA, CONFIG = "versions.json", "data.json", "config.yaml"
_HEADER = (VERSIONS, DATA, CONFIG)  # in the order in which they are written


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from training in a folder; a killed process releases it too.

    Raises:
        UsageError: another process trains there, or the folder cannot be made.
    """
    path = lock_of(folder)
    new_parents = [place for place in path.parents if not place.exists()]
    lock: BaseFileLock = FileLock(path, timeout=0.2)  # `is_running` may look at it just now
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise UsageError(f"The run folder {folder} cannot be made: {error}.") from error
    try:
        try:
            lock.acquire()
        except Timeout as error:
            owner = " ".join(path.read_text(encoding="utf-8", errors="replace").split())
            raise UsageError(
                f"Another process{f' ({owner})' if owner else ''} is training in {folder}. Wait until it ends, or "
                "choose another folder with run.dir=..."
            ) from error
        except OSError:
            pass  # a file system without locks
        try:
            if not isinstance(lock, SoftFileLock):  # which keeps notes of its own in the file
                path.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
            yield
        finally:
            path.unlink(missing_ok=True)
            lock.release()
    finally:
        with suppress(OSError):  # a parent that holds the run stays
            for parent in new_parents:
                parent.rmdir()


@contextmanager
def claimed(folder: Path, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Make the folder ready for a run that the context sets up.

    A run that `overwrite` replaces is deleted when the context ends well, and put back when it does not.

    Raises:
        UsageError: the folder is in use, holds something else, cannot be made, or has nothing to resume.
    """
    real = Path(os.path.realpath(folder))  # a link to a run stays a link
    former = _former(real)
    try:
        put_back(folder)
        holds_run = _check(folder, resume=resume, overwrite=overwrite)
        new_folders = [place for place in (real, *real.parents) if not place.exists()]
        if holds_run and overwrite:
            os.replace(real, former)
        real.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"The run folder {folder} cannot be made: {error}.") from error
    try:
        yield
    except BaseException:
        if former.exists():
            shutil.rmtree(real)
            os.replace(former, real)
        elif not holds_run:
            _empty(real)
            with suppress(OSError):  # a parent that now holds something else stays
                for place in new_folders:
                    place.rmdir()
        raise
    if former.exists():
        trash = real.parent / f".{real.name}.deleted"
        shutil.rmtree(trash, ignore_errors=True)
        os.replace(former, trash)  # half of a run that is being deleted is never put back
        shutil.rmtree(trash, ignore_errors=True)


def put_back(folder: Path) -> None:
    """Undo the replacement of a run that was killed while the new run was set up."""
    real = Path(os.path.realpath(folder))
    if _former(real).exists():
        shutil.rmtree(real, ignore_errors=True)
        os.replace(_former(real), real)


def _former(real: Path) -> Path:
    """Where a run waits while another one takes its place."""
    return real.parent / f".{real.name}.replaced"


def _empty(folder: Path) -> None:
    """Delete everything in a folder, the header last: what a kill leaves of it is a run, or a set-up, still."""
    header = [folder / name for name in reversed(_HEADER)]
    for place in folder.iterdir():
        if place not in header:
            delete(place)
    for place in header:
        delete(place)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full disk or a folder without permission is an error of the run, which can be resumed.

    Raises:
        RunError: names what could not be written.
    """
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}.") from error


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing; half a surrogate pair, which UTF-8 cannot hold, as its JSON escape.

    Raises:
        RunError: it cannot be written.
    """
    with writing(path), replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def _check(folder: Path, *, resume: bool, overwrite: bool) -> bool:
    """Refuse a folder that may not be written to; returns whether it holds a run."""
    if resume and overwrite:
        raise UsageError("Give either --resume or --overwrite, not both.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"The run folder {folder} is a file. Choose another with run.dir=...")
    names = {place.name for place in folder.iterdir()} if folder.is_dir() else set()
    unfinished = bool(names) and _is_unfinished(folder, names)
    holds_run = bool(names) and not unfinished
    if resume and not holds_run:
        unusable = "holds a run whose set-up did not finish" if names else "is empty"
        state = unusable if folder.is_dir() else "does not exist"
        raise UsageError(
            f"There is nothing to resume in {folder}: it {state}. Start the run without --resume.",
            page="guards#checkpoints",
        )
    missing = [name for name in (VERSIONS, CONFIG) if name not in names]  # a project may have the second
    if holds_run and missing:
        raise UsageError(
            f"{folder} holds files that are not a run of grpokit: it has no {missing[0]}. Choose another folder with "
            "run.dir=...",
            page="guards#checkpoints",
        )
    if holds_run and not resume and not overwrite:
        raise UsageError(
            f"{folder} already holds a run. Add --resume to go on with it, --overwrite to delete it and start again, "
            "or choose another folder with run.dir=...",
            page="guards#checkpoints",
        )
    return holds_run


def _is_unfinished(folder: Path, names: set[str]) -> bool:
    """Whether a folder holds nothing but a header that was not written to its end."""
    if not names <= {*(_HEADER[:-1]), *(partial_of(Path(name)).name for name in _HEADER)}:
        return False
    if DATA in names and VERSIONS not in names:
        return False
    if VERSIONS not in names:
        return True
    try:
        content = read_json(folder / VERSIONS)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "grpokit" in content  # another program's file of that name is not ours


def versions(config: RunConfig) -> dict[str, Any]:
    """The versions of Python, grpokit, torch and all plugins, and digests of the config's own code."""
    return {
        "python": platform.python_version(),
        "grpokit": grpokit.__version__,
        "torch": str(torch.__version__),
        "plugins": {p.name: f"{p.package} {p.version}" for p in registry.plugins() if not p.error},
        "code": _own_code(config),
    }


def _own_code(config: RunConfig) -> dict[str, str]:
    """Module -> digest of its code, for the components that a config names as "package.module:function".

    Comments and blank lines do not count, nor does what the module imports.
    """
    plugins = {plugin.name for plugin in registry.plugins()}
    modules = {name.partition(":")[0] for name in _uses(resolved(config)) if ":" in name} - plugins
    return {module: digest(ast.dump(ast.parse(source))) for module in sorted(modules) if (source := _source(module))}


def _uses(settings: Any) -> Iterator[str]:
    """The components that a config names."""
    for key, value in settings.items() if isinstance(settings, Mapping) else enumerate(settings):
        if key in ("use", "advantage", "objective") and isinstance(value, str):
            yield value
        elif isinstance(value, (Mapping, list)):
            yield from _uses(value)


def _source(module: str) -> bytes:
    """The source of a module, empty where it has none."""
    spec = find_spec(module)
    return Path(spec.origin).read_bytes() if spec and spec.origin and spec.origin.endswith(".py") else b""


def write_header(folder: Path, config: RunConfig, data: Mapping[str, Any]) -> None:
    """Write the versions of all that took part, the digests of the prompts, and the resolved config.

    Raises:
        RunError: a file cannot be written.
    """
    settings = resolved(config)
    settings["run"]["dir"] = str(folder)
    write_text(folder / VERSIONS, json.dumps(versions(config), indent=2))
    write_text(folder / DATA, json.dumps(data))
    write_text(folder / CONFIG, yaml_source.write(settings))


def write_machine(folder: Path, device: torch.device) -> None:
    """Write when and on what a run began, for its report; a resume leaves it as it is.

    Raises:
        RunError: the file cannot be written.
    """
    if not (folder / MACHINE).exists():
        name = (
            torch.cuda.get_device_name(device)
            if device.type == "cuda"
            else f"{device.type.upper()}, {platform.machine()}"
        )
        started = datetime.now(UTC).isoformat(timespec="seconds")
        write_text(folder / MACHINE, json.dumps({"started": started, "device": name}))
