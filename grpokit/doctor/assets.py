"""Whether what a component needs besides Python packages is on this machine. No network is used."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from grpokit.registry.specs import Asset

_VARIABLE = re.compile(r"\$\{(\w+):-([^${}]*)\}")
_HUB = "${HF_HUB_CACHE:-${HUGGINGFACE_HUB_CACHE:-${HF_HOME:-${XDG_CACHE_HOME:-~/.cache}/huggingface}/hub}}"


def wanted(asset: Asset) -> bool:
    """Whether the optional module that uses it is installed."""
    return not asset.module or importlib.util.find_spec(asset.module) is not None


def found(asset: Asset) -> bool:
    """Whether all of it is there."""
    if asset.paths:
        return any(glob.glob(expanded(path)) for path in asset.paths)
    folder = _snapshot(asset.repository)
    return folder is not None and all(
        any(_whole(folder, pattern) for pattern in each.split("|")) for each in asset.files
    )


def fetch(asset: Asset) -> str:
    """The command that brings it."""
    if asset.fetch or not asset.repository:
        return asset.fetch
    files = [each.partition("|")[0] for each in asset.files]
    whole = any(glob.has_magic(file) for file in files)
    return " ".join(["hf download", asset.repository, *([] if whole else files)])


def place(asset: Asset) -> str:
    """The places on disk where it may lie."""
    return " or ".join(map(expanded, asset.paths))


def expanded(path: str) -> str:
    """A path with its variables and its "~" replaced.

    >>> expanded("${NO_SUCH_VARIABLE:-${NOR_THIS:-/a}/b}/c.pt")
    '/a/b/c.pt'
    """
    while (match := _VARIABLE.search(path)) is not None:  # the innermost comes first
        value = os.path.expandvars(os.environ.get(match[1], ""))
        path = path[: match.start()] + (value or match[2]) + path[match.end() :]
    return os.path.expanduser(os.path.expandvars(path))


def hub_cache() -> str:
    """The folder where the libraries of the Hugging Face hub keep what they fetched."""
    return expanded(_HUB)


def hub_is_off() -> bool:
    """Whether these libraries fetch nothing."""
    word = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return word.upper() in ("1", "ON", "YES", "TRUE")


def _snapshot(repository: str) -> Path | None:
    """The folder of a repository's main branch in the cache."""
    folder = Path(hub_cache(), f"models--{repository.replace('/', '--')}")
    reference = folder / "refs" / "main"
    if not reference.is_file():
        return None
    return folder / "snapshots" / reference.read_text(encoding="utf-8").strip()


def _whole(folder: Path, pattern: str) -> bool:
    """Whether files match, and none is missing that an index beside them lists."""
    files = [file for file in folder.glob(pattern) if file.exists()]  # a link in the cache may lead nowhere
    return bool(files) and all(file.exists() for file in _listed({file.parent for file in files}, files[0].suffix))


def _listed(folders: set[Path], suffix: str) -> Iterator[Path]:
    for folder in folders:
        for index in folder.glob(f"*{suffix}.index.json"):
            for name in set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()):
                yield folder / name
