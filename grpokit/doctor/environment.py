"""Packages, plugins and weights. What needs libraries is found by another process, which a broken one may end."""

from __future__ import annotations

import glob
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.utils import canonicalize_name
from packaging.version import Version

from grpokit import registry
from grpokit.errors import address
from grpokit.registry.specs import Asset

MARK = "finding: "  # before what the other process finds
_PATIENCE = 180.0  # seconds; the first import of torch from a slow disk is most of it
_SLOW = 2.0  # seconds; a module that imports grpokit alone takes milliseconds
_SHOWN = ("grpokit", "torch", "accelerate", "transformers", "diffusers", "peft")
_VARIABLE = re.compile(r"\$\{(\w+):-([^${}]*)\}")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is there, and what it means and what to do; a "note" breaks nothing, a "problem" must be fixed."""

    area: str
    state: Literal["ok", "note", "problem"]
    what: str
    advice: str = ""


def examine(commands: Collection[str]) -> Iterator[Finding]:
    """Yield what is found, area by area; a broken installation raises nothing.

    Args:
        commands: the command line's own, without those of plugins.
    """
    yield from packages()
    yield from plugins(commands)
    yield from training()


def packages() -> Iterator[Finding]:
    """Versions, and what `pip check` says, or where there is no pip, which plugins are for another grpokit."""
    versions = {each.name: each.version for each in importlib.metadata.distributions()}
    shown = ", ".join(f"{name} {versions[name]}" for name in _SHOWN if name in versions)
    yield Finding(area="packages", state="ok", what=f"Python {platform.python_version()}, {shown}")
    entries = importlib.metadata.entry_points(group="grpokit")
    plugins = {canonicalize_name(entry.dist.name) for entry in entries if entry.dist is not None}
    done = _python("pip", "check")
    if not done.stdout.strip():
        what = "pip does not work here, so the requirements of other packages are not checked"
        yield Finding(area="packages", state="note", what=what, advice="Run: uv pip check")
        for mistake in filter(None, map(registry.mismatch, sorted(plugins))):
            yield Finding(area="packages", state="problem", what=mistake)
    for line in done.stdout.strip().splitlines() if done.returncode else []:
        name = canonicalize_name(line.split()[0])
        own = name in plugins or name.startswith("grpokit-")
        advice = _update(name, line) if own else ""
        yield Finding(area="packages", state="problem" if own else "note", what=line.rstrip("."), advice=advice)


def _update(name: str, line: str) -> str:
    """What mends a line of `pip check` about a package, and takes no other package back to an older version."""
    conflict = re.search(r"but you have (\S+) (\S+?)\.?$", line)
    if conflict is None:
        return f"Run: pip install {name}"
    other, version = conflict[1], Version(conflict[2]).public
    return (
        f"Run: pip install --upgrade {name} '{other}>={version}'. If pip finds no such release, {name} does not work "
        f"beside this {other}: uninstall it. Its rewards can run in an environment of their own, a capsule "
        f"({address('capsules')})."
    )


def plugins(commands: Collection[str]) -> Iterator[Finding]:
    """Plugins with their errors and slow imports, and names that two of them or one and the core use."""
    for plugin in registry.plugins():
        what = f"plugin '{plugin.name}' of {plugin.package} {plugin.version}"
        if plugin.error:
            broken = f"{what} is broken: {plugin.error}"
            advice = f"What it brings cannot be used. Update it, or run: pip uninstall {plugin.package}"
            yield Finding(area="plugins", state="problem", what=broken, advice=advice)
        elif plugin.seconds > _SLOW:
            slow = f"{what} takes {plugin.seconds:.0f} s to import, and every command waits for it"
            advice = f"Its author should import heavy packages with the component, and not in '{plugin.module}'."
            yield Finding(area="plugins", state="note", what=slow, advice=advice)
        elif not plugin.refused:
            yield Finding(area="plugins", state="ok", what=what)
        for spec in plugin.refused:
            refusal = registry.refusal(spec, plugin.package)
            yield Finding(area="plugins", state="problem", what=f"{what}: {refusal}")
    for what, advice in registry.clashes(commands):
        yield Finding(area="plugins", state="problem", what=what, advice=advice)


def weights() -> Iterator[Finding]:
    """What components declare as their assets: each once, with all that need it."""
    hub: Any = importlib.import_module("huggingface_hub")  # accelerate brings it
    constants: Any = importlib.import_module("huggingface_hub.constants")
    cache = Path(constants.HF_HUB_CACHE)
    repositories = hub.scan_cache_dir(cache).repos if cache.is_dir() else ()
    snapshots = {each.repo_id: each.refs["main"].snapshot_path for each in repositories if "main" in each.refs}
    assets: dict[str, tuple[Asset, list[str]]] = {}
    for plugin in registry.plugins():
        for spec in plugin.specs:
            for asset in spec.assets:
                if not asset.module or importlib.util.find_spec(asset.module):
                    assets.setdefault(repr(asset), (asset, []))[1].append(f"{spec.kind} '{spec.name}'")
    for asset, users in assets.values():
        what = f"{asset.name}{f' ({asset.repository})' if asset.repository else ''}, for {', '.join(users)}"
        if find_asset(asset, snapshots):
            yield Finding(area="weights", state="ok", what=f"found: {what}")
            continue
        place = f"Looked for it in {' or '.join(map(expand, asset.paths))}. " if asset.paths else ""
        files = [each.partition("|")[0] for each in asset.files]
        if "*" in str(asset.files):
            files = []
        advice = f"{place}To fetch it, run: {asset.fetch or ' '.join(['hf download', asset.repository, *files])}"
        if constants.HF_HUB_OFFLINE:
            advice += "\nHF_HUB_OFFLINE is set, so a run will not fetch it."
        yield Finding(area="weights", state="note", what=f"missing: {what}", advice=advice)


def find_asset(asset: Asset, snapshots: Mapping[str, Path]) -> bool:
    """Whether all of it is there; `snapshots` are the folders of repositories in the hub's cache."""
    if asset.paths:
        return any(glob.glob(expand(path)) for path in asset.paths)
    folder = snapshots.get(asset.repository)
    if folder is None:
        return False
    alternatives = [files.split("|") for files in asset.files]
    return all(any(_whole(folder, pattern) for pattern in patterns) for patterns in alternatives)


def _whole(folder: Path, pattern: str) -> bool:
    """Whether files match, and every file exists that an index next to them lists."""
    files = list(folder.glob(pattern))
    indexes = {index for file in files for index in file.parent.glob(f"*{file.suffix}.index.json")}
    needed = list(files)
    for index in indexes:
        names = json.loads(index.read_text())["weight_map"].values()
        needed += [index.parent / name for name in names]
    return bool(files) and all(file.exists() for file in needed)


def expand(path: str) -> str:
    """A path with its variables and its "~" replaced.

    >>> expand("${NO_SUCH_VARIABLE:-${NOR_THIS:-/a}/b}/c.pt")
    '/a/b/c.pt'
    """
    while (match := _VARIABLE.search(path)) is not None:  # the innermost comes first
        value = os.environ.get(match[1]) or match[2]
        path = path[: match.start()] + value + path[match.end() :]
    return os.path.expanduser(os.path.expandvars(path))


def training() -> Iterator[Finding]:
    """What the other process finds, and how it ended."""
    done = _python("grpokit.doctor.training")
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            yield Finding(**json.loads(line.removeprefix(MARK)))
    if done.returncode:
        ending = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        errors = re.findall(r"^[\w.]+: .+", done.stderr, re.MULTILINE)
        lines = errors or done.stderr.strip().splitlines() or ["it printed nothing"]
        words = lines[-1][:300]
        what = f"the process that imports torch and trains ended with {ending}: {words}"
        advice = "A library crashes when it is imported or used. Reinstall what the message names, such as torch: pip "
        advice += "install --force-reinstall torch"
        yield Finding(area="self-test", state="problem", what=what, advice=advice)


def _python(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"it did not end within {_PATIENCE:.0f} s")
