"""What the folder of a pipeline holds, looked at before any weights are read."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers

from grpokit import UsageError
from grpokit.errors import one_line
from grpokit_hf.models import sources

NEED = (
    "Give a folder that a pipeline's save_pretrained wrote, or a hub id like 'stabilityai/stable-diffusion-3.5-medium'."
)
_TOKENIZER = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")  # any of these has the words


@dataclass(frozen=True, kw_only=True)
class Index:
    """What `model_index.json` says.

    Attributes:
        kind: the name of the pipeline's class.
        parts: name -> the name of its class, of all that are there.
        settings: what else its class is given.
    """

    kind: str
    parts: dict[str, str]
    settings: dict[str, Any]


def read_index(folder: Path) -> Index:
    """Read `model_index.json` of a folder.

    Raises:
        UsageError: it is not there, damaged, or that of a pipeline with code of its own.
    """
    if folder.is_file():
        raise UsageError(
            f"The model '{folder}' is a file, and a pipeline is a folder. diffusers converts some: "
            f"StableDiffusion3Pipeline.from_single_file({str(folder)!r}).save_pretrained('FOLDER'), or FluxPipeline."
        )
    if not folder.is_dir():
        raise UsageError(f"The model folder '{folder}' does not exist. {NEED}")
    file = folder / "model_index.json"
    if not file.is_file():
        raise UsageError(f"The model folder '{folder}' has no model_index.json, so it holds no pipeline. {NEED}")
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"'{file}' is damaged ({one_line(error)}). {sources.AGAIN}") from error
    entries = {name: entry for name, entry in index.items() if name[:1] != "_"} if isinstance(index, dict) else {}
    lists = {name: entry for name, entry in entries.items() if isinstance(entry, list)}
    named = {name: entry for name, entry in lists.items() if all(isinstance(x, str | None) for x in entry)}
    if not named or any(len(entry) != 2 for entry in named.values()):
        raise UsageError(f"'{file}' is damaged: expected each part's library and class. {sources.AGAIN}")
    if not isinstance(index.get("_class_name"), str):
        raise UsageError(
            f"'{file}' names no class of diffusers: its _class_name is {index.get('_class_name')!r}. Code that a "
            "repository brings is not run here."
        )
    return Index(
        kind=index["_class_name"],
        parts={name: str(entry[1]) for name, entry in named.items() if entry[1] is not None},
        settings={name: entry for name, entry in entries.items() if name not in named},
    )


def absent_parts(index: Index, *, model: str, optional: Sequence[str]) -> list[str]:
    """The parts that a pipeline can do without, and lacks.

    Args:
        index: of its folder.
        model: as the user named it.
        optional: names of parts that its family can do without.

    Raises:
        UsageError: it lacks another one.
    """
    kind: Any = getattr(diffusers, index.kind, None)
    if kind is None:
        return []
    expected = inspect.signature(kind.__init__).parameters.values()
    needed = [p.name for p in expected if p.name != "self" and p.default is p.empty]
    absent = [name for name in needed if name not in index.parts and name not in kind._optional_components]
    for name in absent:
        if name not in optional:
            raise UsageError(f"The pipeline '{model}' has no {name}: its model_index.json names none. {sources.AGAIN}")
    return absent


def check_parts(folder: Path, index: Index) -> None:
    """Refuse a pipeline without one of its parts' files, or with torn weights; they are not read.

    Raises:
        UsageError: naming the part.
    """
    for name in index.parts:
        own, lacks = folder / name, f"The folder '{folder}' has no"
        if not own.is_dir():
            raise UsageError(f"{lacks} '{name}', which its model_index.json names. {sources.AGAIN}")
        if name.startswith("tokenizer") and not sources.has(own, _TOKENIZER):
            raise UsageError(f"{lacks} words in '{name}': expected tokenizer.json. {sources.AGAIN}")
        model = (own / "config.json").is_file() and not sources.has(own, ("tokenizer*", "preprocessor*"))
        if model and not sources.has(own, ("*.safetensors",)):
            raise UsageError(f"{lacks} weights in '{name}': expected .safetensors. {sources.AGAIN}")
        sources.check_weights(own)
