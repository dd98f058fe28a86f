"""Begins a run folder: whether a run may begin or continue there, and the header that says what was started.

The header is `versions.json` (packages and own code that took part), `data.json` (digests of the prompts) and
`config.yaml` (resolved).
"""

from __future__ import annotations

import ast
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import grpokit
from grpokit import registry
from grpokit.config import yaml_source
from grpokit.config.schema import texts
from grpokit.data.digests import digest
from grpokit.errors import UsageError
from grpokit.files import delete, write_text, writing
from grpokit.run_folder.names import CHECKPOINTS, CONFIG, DATA, END, MACHINE, VERSIONS
from grpokit.run_folder.reader import read_rows
from grpokit.training.checkpoint import latest

_NAMED = re.compile(r"([A-Za-z_][\w.]*):[\w.-]+")
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
    problem = ""
    if missing:
        problem = f"holds files that are not a run of grpokit: it has no {missing[0]}. Choose"
    elif not resume and not overwrite:
        problem = (
            "already holds a run. Add --resume to continue it, --overwrite to delete it and start again, or choose"
        )
    if problem:
        raise UsageError(f"{folder} {problem} another folder with run.dir=...", page="guards#checkpoints")
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
def initialised(folder: Path, *, resumed: bool) -> Iterator[None]:
    """Make the folder of a new run, or empty it. After an error inside, nothing is left of that run.

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


def versions(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The versions of Python, grpokit, torch and all plugins, and digests of the own code that a config names."""
    return {
        "python": platform.python_version(),
        "grpokit": grpokit.__version__,
        "torch": str(torch.__version__),
        "plugins": {p.package: p.version for p in registry.plugins() if not p.error},
        "code": _own_code(settings),
    }


def _own_code(settings: Mapping[str, Any]) -> dict[str, str]:
    """Module -> digest of its code, for all that a config names as "package.module:function", an environment too.

    Comments and blank lines do not count, nor does what the module imports.
    """
    named = map(_NAMED.fullmatch, texts(settings))
    modules = {match[1] for match in named if match and registry.is_path(match[0])}
    digests = {}
    for module in sorted(modules):
        source = _source(module)
        if source:
            digests[module] = digest(ast.dump(ast.parse(source)))
    return digests


def _source(module: str) -> bytes:
    """The source of a module, empty where it has none."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # another text with a colon
        return b""
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return b""
    return Path(spec.origin).read_bytes()


def write_header(folder: Path, settings: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Write the versions of all that took part, the digests of the prompts, and the resolved config.

    Raises:
        RunError: a file cannot be written.
    """
    run = {**settings.get("run", {}), "dir": str(folder)}
    write_text(folder / VERSIONS, json.dumps(versions(settings), indent=2))
    write_text(folder / DATA, json.dumps(data))
    write_text(folder / CONFIG, yaml_source.to_yaml({**settings, "run": run}))


def write_machine(folder: Path, device: torch.device) -> None:
    """Write when and on what a run began, for its report; a resume does not change it.

    Raises:
        RunError: the file cannot be written.
    """
    if not (folder / MACHINE).exists():
        on_gpu = device.type == "cuda"
        name = torch.cuda.get_device_name(device) if on_gpu else f"{device.type.upper()}, {platform.machine()}"
        started = datetime.now(UTC).isoformat(timespec="seconds")
        write_text(folder / MACHINE, json.dumps({"started": started, "device": name}))
