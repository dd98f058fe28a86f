"""The header of a run folder, which says what was started.

It is `versions.json` (packages and own code that took part), `data.json` (digests of the prompts) and
`config.yaml` (resolved).
"""

from __future__ import annotations

import ast
import json
import platform
import re
from collections.abc import Mapping
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
from grpokit.files import write_text
from grpokit.run_folder.names import CONFIG, DATA, MACHINE, VERSIONS

_NAMED = re.compile(r"([A-Za-z_][\w.]*):[\w.-]+")


def versions(settings: Mapping[str, Any], rewards: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The versions of Python, grpokit, torch and all plugins, and digests of the own code that a config names.

    Args:
        settings: the resolved config.
        rewards: name -> versions of what is installed where a reward runs, for those in environments of their own.
    """
    return {
        "python": platform.python_version(),
        "grpokit": grpokit.__version__,
        "torch": str(torch.__version__),
        "plugins": {p.package: p.version for p in registry.plugins() if not p.error},
        "code": _own_code(settings),
        "rewards": rewards,
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


def write_header(
    folder: Path, settings: Mapping[str, Any], data: Mapping[str, Any], packages: Mapping[str, Any]
) -> None:
    """Write the versions of all that took part, the digests of the prompts, and the resolved config.

    Raises:
        RunError: a file cannot be written.
    """
    run = {**settings.get("run", {}), "dir": str(folder)}
    write_text(folder / VERSIONS, json.dumps(packages, indent=2))
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
