"""Where a causal LM lies, with its tokenizer, and what its folder must hold."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import transformers
from huggingface_hub import errors
from transformers import AutoConfig

from grpokit import UsageError
from grpokit.errors import one_line
from grpokit_hf.models.sources import (
    AGAIN,
    WEIGHTS,
    Files,
    Source,
    SourceSettings,
    check_cache,
    check_weights,
    folder_of,
    has,
    lack_of,
    local,
    locate,
    warn_of_cache,
    why_not,
)

_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)
READS_GGUF = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 23)
"""Whether transformers is new enough: 5.17 takes the token that begins a text for the one that ends it."""

_GGUF_OF_HUB = re.compile(r"([\w.-]+/[\w.-]+)/(.+\.gguf)")


@dataclass(frozen=True, kw_only=True)
class ReadSettings(SourceSettings):
    """How the files of a model are read.

    Attributes:
        trust_remote_code: whether code in the repository may run.
    """

    trust_remote_code: bool = False


_DEFAULT = ReadSettings()


def find(model: str | Path, settings: ReadSettings = _DEFAULT, *, own_tokenizer: bool = True) -> Source:
    """Find a model and read its configuration.

    Args:
        model: a folder, a folder in a package such as "grpokit_lm:models/arithmetic", a hub id such as
            "Qwen/Qwen3-0.6B", or a GGUF file in one of these, such as "models/small.gguf" or "org/name/small.gguf".
        settings: how it is read.
        own_tokenizer: whether its tokenizer must be there, too.

    Raises:
        UsageError: there is no such model, it may not be read, or it lacks a file.
    """
    name = str(model)
    if not name.strip():
        raise UsageError("model is empty: expected a hub id like 'org/name', or a folder that save_pretrained wrote.")
    place, gguf = split_gguf(name)
    folder = local(place)
    if folder is not None:
        if not gguf:
            _check_folder(folder, own_tokenizer=own_tokenizer)
        if settings.revision is not None:
            what = "file" if gguf else "folder"
            raise UsageError(f"revision is for the hub's repositories, and '{name}' is a {what}. Leave it out.")
    files = locate(place, settings, trust_remote_code=settings.trust_remote_code)
    if gguf:
        files = replace(files, name=name, options={**files.options, "gguf_file": gguf})
    try:
        config = AutoConfig.from_pretrained(files.place, **files.options)
    except (struct.error, IndexError, ValueError) as error:
        if gguf and "supported" not in str(error):
            raise UsageError(f"The GGUF file '{name}' is damaged ({one_line(error)}). {AGAIN}") from error
        raise UsageError(why_not(files, error)) from error
    except (OSError, KeyError, ImportError, TypeError, errors.StrictDataclassError) as error:
        raise UsageError(why_not(files, error)) from error
    warn_of_cache(files)
    if folder is None and not gguf and files.options["local_files_only"]:
        check_cache(files, marker="config.json", lack=partial(_lack, own_tokenizer=own_tokenizer))
    return Source(**vars(files), config=config)


def find_tokenizer(tokenizer: str | Path, settings: ReadSettings) -> Files:
    """Find a tokenizer or processor that is not the model's own.

    Args:
        tokenizer: a folder or hub id, as the model of `find`.
        settings: as of the model, whose revision is not the tokenizer's.

    Raises:
        UsageError: there is no such folder.
    """
    name = str(tokenizer)
    folder = local(name)
    if folder is not None and not folder.is_dir():
        raise UsageError(
            f"The tokenizer's folder '{folder}' {'is a file' if folder.exists() else 'does not exist'}. Give a folder "
            "that save_pretrained wrote, or a hub id like 'org/name'."
        )
    own = SourceSettings(local_files_only=settings.local_files_only)
    return locate(name, own, trust_remote_code=settings.trust_remote_code)


def _lack(folder: Path, *, own_tokenizer: bool) -> str:
    """What a folder of the cache lacks; empty if all is there."""
    if not has(folder, WEIGHTS):
        return "without its weights"
    if own_tokenizer and not has(folder, _TOKENIZER):
        return "without its tokenizer"
    return lack_of(folder)


def split_gguf(name: str) -> tuple[str, str]:
    """The folder or hub id of a GGUF file, and the file's name; for any other model its own name, and none.

    Raises:
        UsageError: there is no such file, or nothing here can read it.
    """
    if not name.endswith(".gguf"):
        return name, ""
    file = folder_of(name)
    of_hub = None if file.is_file() else _GGUF_OF_HUB.fullmatch(name)
    if not file.is_file() and of_hub is None:
        raise UsageError(
            f"There is no GGUF file '{file}'. Give the path of one, or for one of the hub 'org/name/{file.name}'."
        )
    if importlib.util.find_spec("gguf") is None or not READS_GGUF:
        raise UsageError(
            f"To read '{name}', the Python package gguf and transformers 5.23 are needed. Run: pip install "
            "'grpokit-lm[gguf]'"
        )
    return (str(file.parent), file.name) if of_hub is None else (of_hub[1], of_hub[2])


def _check_folder(folder: Path, *, own_tokenizer: bool) -> None:
    """Refuse a folder that is no model, naming what it lacks."""
    what = f"The model folder '{folder}'"
    need = "Give a folder that save_pretrained wrote, for the model and for its tokenizer, or a hub id like 'org/name'."
    if not folder.is_dir():
        raise UsageError(f"'{folder}' is a file. {need}" if folder.exists() else f"{what} does not exist. {need}")
    gguf = sorted(folder.glob("*.gguf"))
    if gguf and not has(folder, WEIGHTS):
        raise UsageError(f"{what} holds weights in GGUF format. Name the file itself, such as model: {gguf[0]}.")
    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            base = _base_of(folder / "adapter_config.json")
            raise UsageError(
                f"{what} holds an adapter, not a model. Name the adapter's base model{base}; to train the adapter on, "
                f"add lora: {{adapter: {folder}}}."
            )
        raise UsageError(f"{what} has no config.json. {need}")
    if not has(folder, WEIGHTS):
        raise UsageError(f"{what} has no weights: expected model.safetensors, or several with an index. {need}")
    if own_tokenizer and not has(folder, _TOKENIZER):
        raise UsageError(
            f"{what} has no tokenizer: expected tokenizer.json beside the weights. Save it there with "
            "tokenizer.save_pretrained(folder), or name another one as tokenizer."
        )
    generation = folder / "generation_config.json"  # transformers would go on without it, and with other end tokens
    try:
        if generation.is_file():
            json.loads(generation.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"'{generation}' is damaged ({one_line(error)}). {AGAIN}") from error
    check_weights(folder)


def _base_of(adapter_config: Path) -> str:
    with suppress(OSError, ValueError):
        base = json.loads(adapter_config.read_text(encoding="utf-8")).get("base_model_name_or_path")
        return f" ('{base}')" if base else ""
    return ""
