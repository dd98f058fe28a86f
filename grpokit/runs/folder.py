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
from grpokit.files import delete, lock_of, replacing
from grpokit.report import MACHINE
from grpokit.training.checkpoint import latest

VERSIONS, DATA, CONFIG = "versions.json", "data.json", "config.yaml"
_UNFINISHED = ".unfinished"  # in the folder of a run that is being begun


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


def may_go_on(folder: Path, *, resume: bool, overwrite: bool) -> bool:
    """Whether a run goes on from a checkpoint in a folder; if not, a new one may begin there.

    Raises:
        UsageError: the folder holds a run and neither option is given, holds something else, or is a file.
    """
    if resume and overwrite:
        raise UsageError("Give either --resume or --overwrite, not both.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"The run folder {folder} is a file. Choose another with run.dir=...")
    names = {place.name for place in folder.iterdir()} if folder.is_dir() else set()
    if not names or _UNFINISHED in names:
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
            f"{folder} already holds a run. Add --resume to go on with it, --overwrite to delete it and start again, "
            "or choose another folder with run.dir=...",
            page="guards#checkpoints",
        )
    return resume and latest(folder / "checkpoints") is not None


@contextmanager
def begun(folder: Path, *, resumed: bool) -> Iterator[None]:
    """Make the folder of a new run, or empty it. After an error in here nothing is left of that run.

    Until the end it is marked: a start after a kill takes it as empty.

    Raises:
        RunError: it cannot be emptied or made.
    """
    if resumed:
        yield
        return
    folder = Path(os.path.realpath(folder))  # a link to a run stays a link
    mark, is_new = folder / _UNFINISHED, not folder.exists()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
        _empty(folder, mark)
    try:
        yield
    except BaseException:
        _empty(folder, mark)
        mark.unlink()
        if is_new:
            folder.rmdir()
        raise
    mark.unlink()


def _empty(folder: Path, mark: Path) -> None:
    for place in folder.iterdir():
        if place != mark:
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
