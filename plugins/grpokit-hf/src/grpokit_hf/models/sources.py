"""Where a model lies: a folder, a folder inside a Python package, or a repository of the Hugging Face hub.

What is wrong with it is said within seconds. What a folder must hold beside weights is for each plugin to say.

A hub that cannot be reached is asked once, and not again for every file with growing pauses. What is in the cache is
then used as it is.
"""

from __future__ import annotations

import importlib.util
import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import transformers
from huggingface_hub import constants, errors, try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig

from grpokit.errors import UsageError, one_line, plural
from grpokit.rewards import downloads
from grpokit.settings import Settings

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")
"""Patterns of the names of files with a model's weights."""
_READ_FIRST = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "diffusion_pytorch_model.safetensors",  # diffusers' names
    "diffusion_pytorch_model.safetensors.index.json",
)
AGAIN = "Copy or download it again."
"""The end of a message about a damaged file."""
PICKLED = (  # without torch's own text, whose advice is to load files unsafely
    "cannot be read: a .bin file is damaged, or holds other objects than tensors, which could run code. Get it as "
    ".safetensors."
)
"""The end of a message about a file that only unpickling would read."""
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_IN_PACKAGE = re.compile(r"([^\W\d]\w+):([^\\:]+)")  # two characters at least: C: is a drive


@dataclass(frozen=True, kw_only=True)
class SourceSettings(Settings):
    """Which files of a name are read, and from where.

    Attributes:
        revision: a branch, tag or commit of the hub's repository.
        local_files_only: use the cache and ask no hub.
    """

    revision: str | None = None
    local_files_only: bool = False


_DEFAULT = SourceSettings()


@dataclass(frozen=True, kw_only=True)
class Files:
    """Where the files of a model, a tokenizer or an adapter are, and how they are read.

    Attributes:
        name: as the user named it.
        place: what transformers loads from: a folder, or a hub id.
        options: revision, local_files_only and trust_remote_code, for every file.
        unreachable: why the hub cannot be reached; empty if it can be, or need not be asked.
    """

    name: str
    place: str
    options: dict[str, Any]
    unreachable: str


@dataclass(frozen=True, kw_only=True)
class Source(Files):
    """A model that is there, with its configuration."""

    config: PreTrainedConfig


def locate(name: str, settings: SourceSettings = _DEFAULT, *, trust_remote_code: bool = False) -> Files:
    """How the files that a name means are read. Only where they may be fetched, the hub is asked whether it is there.

    Args:
        name: a folder, a folder in a package such as "my_package:models/small", or a hub id such as
            "Qwen/Qwen3-0.6B".
        settings: which files of it.
        trust_remote_code: whether code in the repository may run.

    Raises:
        UsageError: as `folder_of`.
    """
    folder = local(name)
    local_files_only = settings.local_files_only or folder is not None or bool(constants.HF_HUB_OFFLINE)
    unreachable = "" if local_files_only else downloads.unreachable(constants.ENDPOINT)
    options = {
        "revision": settings.revision or "main",
        "local_files_only": local_files_only or bool(unreachable),
        "trust_remote_code": trust_remote_code,
    }
    place = name if folder is None else str(folder)
    return Files(name=name, place=place, options=options, unreachable=unreachable)


def warn_of_cache(files: Files) -> None:
    """Say that files which could be read come from the cache, if the hub cannot be reached."""
    if files.unreachable:
        warnings.warn(
            f"{constants.ENDPOINT} cannot be reached ({files.unreachable}); '{files.name}' comes from the cache, "
            f"'{constants.HF_HUB_CACHE}'.",
            stacklevel=3,
        )


def check_cache(files: Files, *, marker: str, lack: Callable[[Path], str]) -> None:
    """Refuse a model that the cache has in part: transformers would say that its repository lacks the rest.

    Args:
        files: of a hub's repository.
        marker: a file that every such model has, by which its folder in the cache is known.
        lack: what a folder lacks, such as "without its weights"; empty if all is there.

    Raises:
        UsageError: something is lacking.
    """
    folder = cached(files.place, marker=marker, revision=files.options["revision"])
    lacking = lack(folder) if folder is not None else ""
    if lacking:
        cache = f"the Hugging Face cache ('{constants.HF_HUB_CACHE}')"
        raise UsageError(
            f"The model '{files.name}' is in {cache}, but {lacking}. {_remedy(files)}", page="doctor#weights"
        )


def cached(name: str, *, marker: str, revision: str | None = None) -> Path | None:
    """The folder of the hub's cache that holds a repository, or None; see `check_cache` for the marker."""
    known = try_to_load_from_cache(name, marker, revision=revision)
    return Path(known).parent if isinstance(known, str) else None


def local(name: str) -> Path | None:
    """The folder that a name means, though it need not exist; None for a hub id."""
    folder = folder_of(name)
    may_be_id = _HUB_ID.fullmatch(name) and not name.startswith(".")
    return None if may_be_id and not folder.exists() else folder


def folder_of(name: str) -> Path:
    """The folder that a model's name means, if it means one; it need not exist.

    Raises:
        UsageError: the name is a link, or that of a folder in a package that is not installed.
    """
    if "://" in name:
        wanted = "/".join(name.split("/")[3:5])
        raise UsageError(f"'{name}' is a link. A model of the hub is named by its id: '{wanted or 'org/name'}'.")
    inside = in_package(name)
    if inside is None or Path(name).exists():
        return Path(name).expanduser()
    package, path = inside
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            f"The model '{name}' should be in the Python package '{package}', but there is no such package. Install "
            "it, or name a folder or a hub id."
        )
    return Path(spec.submodule_search_locations[0]) / path


def in_package(name: str) -> tuple[str, str] | None:
    """The package and the folder inside it, where a model's name has the form "package:folder"."""
    match = _IN_PACKAGE.fullmatch(name)
    return match and (match[1], match[2])


def why_not(files: Files, error: BaseException, *, what: str = "model") -> str:
    """What an error of transformers or of the hub means for someone who named a model, or something else.

    Args:
        files: those that were asked for.
        error: what loading one of them raised.
        what: they are.
    """
    name, causes = files.name, list(_chain(error))

    def raised(kind: type[BaseException]) -> bool:
        return any(isinstance(cause, kind) for cause in causes)

    page = f"{constants.ENDPOINT}/{files.place}"
    if raised(UnpicklingError) or raised(EOFError):
        return f"The {what} '{name}' {PICKLED}"
    if raised(errors.GatedRepoError):
        return (
            f"The {what} '{name}' is gated: its owner gives access on request. Ask for it at {page}, then log in with "
            "`hf auth login` or set HF_TOKEN."
        )
    if raised(errors.RevisionNotFoundError):
        wanted = files.options["revision"]
        return f"The {what} '{name}' has no revision '{wanted}'. Its branches and tags: {page}/tree/main"
    if raised(errors.RepositoryNotFoundError):
        return (
            f"The Hugging Face hub has no {what} '{name}' that you may read. Check the spelling at "
            f"{constants.ENDPOINT}/models; for a private one log in with `hf auth login` or set HF_TOKEN. A folder is "
            "named by its path."
        )
    if raised(errors.LocalEntryNotFoundError):
        return (
            f"The {what} '{name}' is not a folder here and not in the Hugging Face cache ('{constants.HF_HUB_CACHE}'), "
            "or not all of it. "
            f"{_remedy(files, error)}"
        )
    if "trust_remote_code" in str(error):
        return (
            f"The {what} '{name}' needs code from its own repository. Read that code; if you trust it, set "
            "trust_remote_code: true."
        )
    unknown = re.search(r"model type `([^`]*)`", str(error))
    if unknown is not None:
        return (
            f"The {what} '{name}' is of type '{unknown[1]}', which transformers {transformers.__version__} does not "
            "know. A newer one may: pip install -U transformers"
        )
    return f"The {what} '{name}' cannot be loaded: {one_line(error)}."


def _remedy(files: Files, error: BaseException | None = None) -> str:
    """What to do about files that are not in the cache; the error came of fetching them, if that was tried."""
    reason = (
        f"{constants.ENDPOINT} cannot be reached: {files.unreachable}"
        if files.unreachable
        else "HF_HUB_OFFLINE is set"
        if constants.HF_HUB_OFFLINE
        else one_line(error)
        if error is not None and not files.options["local_files_only"]
        else "local_files_only is set"
    )
    revision = files.options["revision"]
    fetch = f"hf download {files.place}" + ("" if revision == "main" else f" --revision {revision}")
    return (
        f"It cannot be fetched, because {reason}. Fetch it on a machine with network by `{fetch}` and copy the cache, "
        "or give the path of a folder that save_pretrained wrote."
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def check_weights(folder: Path) -> None:
    """Refuse a folder whose weights are torn, or lack a part, without reading them.

    Args:
        folder: of a model, or of one component of a pipeline.

    Raises:
        UsageError: a file is damaged, not there, or a pointer in place of the weights.
    """
    lack = lack_of(folder)
    if lack:
        raise UsageError(f"The model folder '{folder}' is {lack}. {AGAIN}", page="doctor#weights")
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass  # which compares the file's length with what its header says
        except (OSError, SafetensorError) as error:
            with suppress(OSError), file.open("rb") as beginning:
                if beginning.read(100).startswith(b"version https://git-lfs"):
                    raise UsageError(
                        f"'{file}' is a pointer of Git LFS in place of the weights. Fetch them with `git lfs pull`."
                    ) from error
            raise UsageError(f"'{file}' is damaged ({one_line(error)}). {AGAIN}", page="doctor#weights") from error


def has(folder: Path, patterns: Sequence[str]) -> bool:
    """Whether a folder has a file of one of these names."""
    return any(any(folder.glob(pattern)) for pattern in patterns)


def lack_of(folder: Path) -> str:
    """What the index names that transformers reads weights by, and the folder lacks; empty if all is there."""
    places = [folder / name for name in (*_READ_FIRST, "")]
    index = next(place for place in places if place.exists())
    if index.suffix != ".json":
        return ""
    with suppress(OSError, ValueError, AttributeError):
        content = json.loads(index.read_text(encoding="utf-8"))
        parts = set(content.get("weight_map", {}).values())
        absent = sorted(part for part in parts if not (folder / str(part)).is_file())
        if absent:
            return f"incomplete: {index.name} names {plural(len(parts), 'file')}, and '{absent[0]}' is not there"
    return ""
