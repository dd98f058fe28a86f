"""One function for each area. `python -m grpokit.doctor.probes AREA` prints its findings as a line of JSON."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Set
from typing import Any

from packaging.requirements import Requirement

from grpokit import registry
from grpokit.doctor import assets
from grpokit.doctor.findings import Finding
from grpokit.errors import GrpokitError, typed_line
from grpokit.registry.specs import Asset

_SHOWN = ("transformers", "diffusers", "peft", "accelerate")  # the versions that people ask for first
_LITTLE_DISK, _NO_DISK = 10e9, 1e9  # bytes: for checkpoints and weights; for any run
_LITTLE_MEMORY = 2e9  # bytes: torch and its libraries take about one


def python() -> Iterator[Finding]:
    """Python, grpokit, and every requirement of the installed distributions."""
    yield Finding(
        area="python", state="ok", what=f"Python {platform.python_version()}, grpokit {_version('grpokit') or 'source'}"
    )
    entries = importlib.metadata.entry_points(group="grpokit")
    plugins = {entry.dist.name for entry in entries if entry.dist is not None}
    wrong = 0
    for name, requirement in sorted({each for plugin in plugins for each in _requirements(plugin)}, key=str):
        version = _version(requirement.name)
        if version and requirement.specifier.contains(version, prereleases=True):
            continue
        wrong += 1
        there = f"version {version} is installed" if version else "it is not installed"
        yield Finding(
            area="python",
            state="problem",
            what=f"{name} needs {requirement.name}{requirement.specifier}, and {there}",
            advice=f"Run: pip install '{requirement.name}{requirement.specifier}'",
        )
    if not wrong:
        versions = ", ".join(f"{name} {_version(name)}" for name in _SHOWN if _version(name))
        yield Finding(area="python", state="ok", what=f"the requirements are met ({versions})")


def torch() -> Iterator[Finding]:
    """torch's build, and the devices that it finds."""
    try:
        import torch
    except Exception as error:
        yield Finding(
            area="torch",
            state="problem",
            what=f"torch cannot be imported: {typed_line(error)}",
            advice="Nothing can be trained. Install it again: pip install --force-reinstall torch",
        )
        return
    cuda, rocm = torch.version.cuda, getattr(torch.version, "hip", None)
    build = f"for CUDA {cuda}" if cuda else f"for ROCm {rocm}" if rocm else "for CPUs"
    yield Finding(area="torch", state="ok", what=f"torch {torch.__version__}, built {build}")
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(number)
        little = free < total / 2
        yield Finding(
            area="torch",
            state="note" if little else "ok",
            what=f"GPU {number}: {torch.cuda.get_device_name(number)}, {_size(free)} of {_size(total)} free",
            advice="Another program uses this GPU. nvidia-smi shows which." if little else "",
            page="memory" if little else "",
        )
    if torch.cuda.is_available():
        return
    has_driver = shutil.which("nvidia-smi") is not None
    if has_driver and cuda:
        yield Finding(
            area="torch",
            state="problem",
            what="torch finds no GPU, though it is built for CUDA and there is an NVIDIA driver",
            advice=f"The driver may be older than CUDA {cuda} needs, or CUDA_VISIBLE_DEVICES hides the GPU. Update the "
            "driver, or install a torch that is built for an older CUDA.",
        )
    elif has_driver:
        yield Finding(
            area="torch",
            state="note",
            what="there is an NVIDIA driver, and this torch is built for CPUs",
            advice="Runs use the CPU. For the GPU, install a CUDA build of torch.",
        )
    else:
        mps = torch.backends.mps.is_available()
        more = "; Apple's GPU (MPS) is there, and grpokit does not use it" if mps else ""
        yield Finding(area="torch", state="ok", what=f"no CUDA device: runs use the CPU{more}")


def torchvision() -> Iterator[Finding]:
    """Whether torchvision fits torch; most libraries of models import it."""
    if importlib.util.find_spec("torchvision") is None:
        yield Finding(
            area="torchvision", state="ok", what="torchvision is not installed, and needed by some rewards only"
        )
        return
    versions = f"torchvision {_version('torchvision')} beside torch {_version('torch')}"
    try:
        torchvision = importlib.import_module("torchvision")
    except Exception as error:
        other_build = "operator torchvision::" in str(error)
        meaning = "It is built for another torch, usually for CUDA beside a CPU torch. " if other_build else ""
        local = (_version("torch").partition("+")[2] or "cpu").removeprefix("git")
        yield Finding(
            area="torchvision",
            state="problem",
            what=f"torchvision cannot be imported ({versions}): {typed_line(error)}",
            advice=f"{meaning}Rewards and models that import it fail, too. Install both as one build: pip install uv "
            f"&& uv pip install --reinstall --torch-backend={local} torch torchvision",
            page="doctor#torchvision",
        )
        return
    yield Finding(area="torchvision", state="ok", what=f"torchvision {torchvision.__version__} can be imported")


def plugins() -> Iterator[Finding]:
    """What `grpokit plugins` knows."""
    for plugin in registry.plugins():
        owner = f"plugin '{plugin.name}' of {plugin.package or 'an unknown package'} {plugin.version}".rstrip()
        if plugin.error:
            yield Finding(
                area="plugins",
                state="problem",
                what=f"{owner} is broken: {plugin.error}",
                advice=f"What it brings cannot be used. Update it, or run: pip uninstall {plugin.package}",
                page="doctor#plugins",
            )
        else:
            kinds = [spec.kind for spec in plugin.specs]
            counts = ", ".join(f"{kind} {kinds.count(kind)}" for kind in dict.fromkeys(kinds)) or "it watches runs"
            yield Finding(area="plugins", state="ok", what=f"{owner} ({counts})")
    for clash in registry.clashes():
        yield Finding(
            area="plugins",
            state="note",
            what=f"the {clash.kind} name '{clash.name}' is ambiguous",
            advice=f"In a config write {' or '.join(map(repr, clash.choices))}.",
            page="doctor#plugins",
        )


def weights() -> Iterator[Finding]:
    """What components declare as their assets: each once, with all that need it."""
    users: dict[str, list[str]] = {}
    declared: dict[str, Asset] = {}
    lacking: list[Asset] = []
    for plugin in registry.plugins():
        for spec in plugin.specs:
            for asset in filter(assets.wanted, spec.assets):
                key = repr(asset)
                declared[key] = asset
                users.setdefault(key, []).append(f"{spec.kind} '{spec.name}'")
    for key, asset in declared.items():
        what = f"{asset.name}{f' ({asset.repository})' if asset.repository else ''}, for {', '.join(users[key])}"
        if assets.found(asset):
            yield Finding(area="weights", state="ok", what=f"found: {what}")
            continue
        where = "" if asset.repository else f"Looked for it in {assets.place(asset)}. "
        command = assets.fetch(asset)
        advice = where + (f"To fetch it, run: {command}" if command else "")
        yield Finding(area="weights", state="note", what=f"missing: {what}", advice=advice, page="doctor#weights")
        lacking += [asset] if command else []
    if lacking and assets.hub_is_off():
        yield Finding(
            area="weights",
            state="note",
            what="HF_HUB_OFFLINE is set",
            advice="A run will not fetch what is missing. Unset it, or fetch the weights before.",
        )
    if not declared:
        yield Finding(area="weights", state="ok", what="no installed component declares any")


def machine() -> Iterator[Finding]:
    """Free disk space and memory."""
    from psutil import virtual_memory

    for name, folder in (("this folder", os.getcwd()), ("the Hugging Face cache", assets.hub_cache())):
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        free = shutil.disk_usage(folder).free
        yield Finding(
            area="machine",
            state="ok" if free > _LITTLE_DISK else "note" if free > _NO_DISK else "problem",
            what=f"{_size(free)} free on the disk of {name}",
            advice=""
            if free > _LITTLE_DISK
            else "Checkpoints and weights may not fit. Free some space, or move the "
            "folder: run.dir for runs, HF_HOME for the cache.",
        )
    memory = virtual_memory()
    little = memory.available < _LITTLE_MEMORY
    yield Finding(
        area="machine",
        state="note" if little else "ok",
        what=f"{_size(memory.available)} of {_size(memory.total)} memory free, {os.cpu_count()} processor cores",
        advice="A run may be killed for lack of memory. End other programs." if little else "",
        page="memory" if little else "",
    )


def self_test() -> Iterator[Finding]:
    """Importance ratio, learning, and exact resume."""
    from grpokit.doctor.self_test import mistakes

    begin = time.monotonic()  # imports are over
    try:
        measured, wrong = mistakes()
    except GrpokitError as error:
        measured, wrong = "", [str(error)]
    for mistake in wrong:
        yield Finding(
            area="self-test",
            state="problem",
            what=mistake.rstrip("."),
            advice="Training cannot be trusted on this machine. Mend what stands above, then try with device: cpu.",
            page="doctor#self-test",
        )
    if not wrong:
        yield Finding(area="self-test", state="ok", what=f"{measured} ({time.monotonic() - begin:.1f} s)")


PROBES: dict[str, Callable[[], Iterator[Finding]]] = {
    "python": python,
    "torch": torch,
    "torchvision": torchvision,
    "plugins": plugins,
    "weights": weights,
    "machine": machine,
    "self-test": self_test,
}


def main(area: str) -> None:
    """Print the findings of one area; an exception becomes the last of them."""
    found: list[dict[str, Any]] = []
    try:
        found += map(dataclasses.asdict, PROBES[area]())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a broken library may raise anything
        found.append(
            dataclasses.asdict(
                Finding(
                    area=area,
                    state="problem",
                    what=f"the probe failed: {typed_line(error)}",
                    advice="A library does not work. Reinstall what the message names.",
                    page="doctor",
                )
            )
        )
    print(f"\n{json.dumps(found)}")


def _requirements(name: str, extras: Set[str] = frozenset()) -> Iterator[tuple[str, Requirement]]:
    """What a distribution needs, and what libraries need that stand between it and grpokit: each behind its owner."""
    for requirement in map(Requirement, _requires(name)):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield name, requirement
            if any(Requirement(line).name == "grpokit" for line in _requires(requirement.name)):
                yield from _requirements(requirement.name, requirement.extras)


def _requires(name: str) -> list[str]:
    """The requirements of a distribution; none without it."""
    return (importlib.metadata.requires(name) or []) if _version(name) else []


def _version(name: str) -> str:
    """The installed version of a distribution; empty without it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _size(count: float) -> str:
    """Bytes as gigabytes."""
    return f"{count / 1e9:,.1f} GB"


if __name__ == "__main__":
    main(sys.argv[1])
