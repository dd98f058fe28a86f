"""Where a causal LM lies, with its tokenizer, and what its folder must hold."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from pathlib import Path

from huggingface_hub import errors
from transformers import AutoConfig

from grpokit import UsageError
from grpokit.errors import one_line
from grpokit.hf.sources import (
    AGAIN,
    WEIGHTS,
    Files,
    Source,
    check_cache,
    check_weights,
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


def find(
    model: str | Path,
    *,
    own_tokenizer: bool = True,
    revision: str | None = None,
    local_files_only: bool = False,
    trust_remote_code: bool = False,
) -> Source:
    """Find a model and read its configuration.

    Args:
        model: a folder, a folder in a package such as "grpokit_lm:models/arithmetic", or a hub id such as
            "Qwen/Qwen3-0.6B".
        own_tokenizer: whether its tokenizer must be there, too.
        revision: a branch, tag or commit of the hub's repository.
        local_files_only: use the cache and ask no hub.
        trust_remote_code: whether code in the repository may run.

    Raises:
        UsageError: there is no such model, it may not be read, or it lacks a file.
    """
    name = str(model)
    if not name.strip():
        raise UsageError("model is empty: expected a hub id like 'org/name', or a folder that save_pretrained wrote.")
    folder = local(name)
    if folder is not None:
        _check_folder(folder, own_tokenizer=own_tokenizer)
        if revision is not None:
            raise UsageError(f"revision is for the hub's repositories, and '{name}' is a folder. Leave it out.")
    files = locate(name, revision=revision, local_files_only=local_files_only, trust_remote_code=trust_remote_code)
    try:
        config = AutoConfig.from_pretrained(files.place, **files.options)
    except (OSError, ValueError, KeyError, ImportError, TypeError, errors.StrictDataclassError) as error:
        raise UsageError(why_not(files, error)) from error
    warn_of_cache(files)
    if folder is None and files.options["local_files_only"]:
        check_cache(files, marker="config.json", lack=partial(_lack, own_tokenizer=own_tokenizer))
    return Source(**vars(files), config=config)


def find_tokenizer(tokenizer: str | Path, *, local_files_only: bool = False, trust_remote_code: bool = False) -> Files:
    """Find a tokenizer or processor that is not the model's own.

    Args:
        tokenizer: a folder or hub id, as the model of `find`.
        local_files_only: use the cache and ask no hub.
        trust_remote_code: whether code in the repository may run.

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
    return locate(name, local_files_only=local_files_only, trust_remote_code=trust_remote_code)


def _lack(folder: Path, *, own_tokenizer: bool) -> str:
    """What a folder of the cache lacks; empty if all is there."""
    if not has(folder, WEIGHTS):
        return "without its weights"
    if own_tokenizer and not has(folder, _TOKENIZER):
        return "without its tokenizer"
    return lack_of(folder)


def _check_folder(folder: Path, *, own_tokenizer: bool) -> None:
    """Refuse a folder that is no model, naming what it lacks."""
    what = f"The model folder '{folder}'"
    need = "Give a folder that save_pretrained wrote, for the model and for its tokenizer, or a hub id like 'org/name'."
    if not folder.is_dir():
        raise UsageError(f"'{folder}' is a file. {need}" if folder.exists() else f"{what} does not exist. {need}")
    if any(folder.glob("*.gguf")) and not has(folder, WEIGHTS):
        raise UsageError(
            f"{what} holds weights in GGUF format, which are made for inference and cannot be trained. Name the model "
            "that they were made from."
        )
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
