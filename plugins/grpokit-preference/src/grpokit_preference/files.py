"""Where weights lie, a path or a place on the Hugging Face hub, and how they are read.

Only weights are read, never pickled code. What a library would leave at random is an error here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, hf_hub_download
from safetensors.torch import load_file
from torch import Tensor, nn

from grpokit.errors import UsageError, one_line, plural
from grpokit_hf.models import sources
from grpokit_hf.models.bars import progress_bars

_ON_HUB = re.compile(r"([\w.-]+/[\w.-]+)/([\w./-]+)")


def pretrained(kind: Any, name: str, *, reward: str, what: str = "model") -> Any:
    """Return a model or tokenizer of transformers from a hub id or a folder that `save_pretrained` wrote.

    Args:
        kind: the class whose `from_pretrained` reads it.
        name: the hub id or the folder.
        reward: the reward's name, for messages.
        what: it is.

    Raises:
        UsageError: it is not there, torn, or lacks weights, which transformers would start at random.
    """
    files = sources.locate(name)
    if sources.local(name) is not None and not Path(files.place).is_dir():
        raise UsageError(
            f"The reward '{reward}': there is no folder '{files.place}' with a {what}. Give the path of a folder that "
            "save_pretrained wrote, or a hub id."
        )
    model = isinstance(kind, type) and issubclass(kind, nn.Module)
    options = {**files.options, **({"output_loading_info": True} if model else {})}
    try:
        if model and (folder := Path(files.place)).is_dir():
            sources.check_weights(folder)
        with progress_bars(name), torch.random.fork_rng(devices=[]):  # a random start must not move the global state
            found = kind.from_pretrained(files.place, **options)
    except UsageError as error:
        raise UsageError(f"The reward '{reward}': {error}") from error
    except Exception as error:  # bytes of another kind make the readers raise a dozen kinds
        raise UsageError(f"The reward '{reward}': {sources.why_not(files, error, what=what)}") from error
    sources.warn_of_cache(files)
    if not model:
        return found
    loaded, info = found
    missing = sorted(info["missing_keys"])
    if missing:
        raise UsageError(
            f"The reward '{reward}': the model '{name}' lacks {plural(len(missing), 'weight')} of a "
            f"{kind.__name__}, such as '{missing[0]}'. Name a model of that class."
        )
    return loaded


def check_tokenizer(tokenizer: Any, name: str, *, known: int, reward: str) -> None:
    """Refuse a tokenizer of another model, whose tokens would be other words, or none at all.

    Args:
        tokenizer: of transformers.
        name: where it came from.
        known: so many tokens have an embedding in the model.
        reward: the reward's name, for messages.

    Raises:
        UsageError: it has a token beyond these, or none to fill up a short prompt.
    """
    tokens = 1 + max(tokenizer.get_vocab().values())
    if tokens > known or tokenizer.pad_token is None:
        lack = f"has {tokens:,} tokens, and the model knows {known:,}" if tokens > known else "has no token for padding"
        raise UsageError(
            f"The reward '{reward}': the tokenizer '{name}' {lack}. Name the one that the model was trained with."
        )


def weights(name: str, *, reward: str) -> dict[str, Tensor]:
    """Return the state dict in a file, which is fetched from the hub where `name` is not a file here.

    Args:
        name: a path, or "owner/repository/file" of the hub.
        reward: the reward's name, for messages.

    Raises:
        UsageError: it cannot be found or fetched, or is no state dict.
    """
    place = _found(name, reward)
    try:
        if place.suffix == ".safetensors":
            state: Any = load_file(place)
        else:
            state = torch.load(place, "cpu", weights_only=True)
    except Exception as error:  # as above
        raise UsageError(  # without torch's own text, whose advice is to load files unsafely
            f"The reward '{reward}': the file '{place}' cannot be read as weights of torch or safetensors "
            f"({type(error).__name__}): it is torn, or another kind of file. Fetch it again."
        ) from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):  # beside the state of a training
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
        raise UsageError(f"The reward '{reward}': expected a state dict in '{place}', got {type(state).__name__}.")
    return {key.removeprefix("module."): x for key, x in state.items()}


def fill(model: nn.Module, state: Mapping[str, Tensor], *, name: str, reward: str) -> None:
    """Load weights into a model in place; what the model does not have is left aside.

    Raises:
        UsageError: a weight is missing, or has another shape.
    """
    own = model.state_dict()
    wrong = [key for key in own if key not in state or state[key].shape != own[key].shape]
    if wrong:
        key = wrong[0]
        shape = f"has the shape {tuple(state[key].shape)}" if key in state else "is not there"
        raise UsageError(
            f"The reward '{reward}': '{name}' does not hold the weights of its model: '{key}' {shape}, expected "
            f"{tuple(own[key].shape)} ({len(wrong):,} of {plural(len(own), 'weight')} do not fit)."
        )
    model.load_state_dict({key: state[key] for key in own})


def _found(name: str, reward: str) -> Path:
    place = Path(name).expanduser()
    if place.is_file():
        return place
    on_hub = _ON_HUB.fullmatch(name)
    if on_hub is None:
        raise UsageError(
            f"The reward '{reward}': there is no file '{name}' (the parameter weights). Give the path of a file, or "
            "owner/repository/file of the Hugging Face hub."
        )
    repository, file = on_hub.groups()
    files = sources.locate(repository)  # the hub is asked once, and not with growing pauses
    try:
        return Path(hf_hub_download(repository, file, local_files_only=files.options["local_files_only"]))
    except Exception as error:  # of the hub, of the network, of the disk
        reason = (
            "HF_HUB_OFFLINE is set"
            if constants.HF_HUB_OFFLINE
            else f"{constants.ENDPOINT} cannot be reached: {files.unreachable}"
            if files.unreachable
            else one_line(error)
        )
        raise UsageError(
            f"The reward '{reward}' needs the file '{file}' of '{repository}'. It is not a file here and not in the "
            f"Hugging Face cache ('{constants.HF_HUB_CACHE}'), and cannot be fetched: {reason}. Fetch it on a machine "
            f"with network by `hf download {repository} {file}` and copy the cache, or give the path of a copy as "
            "weights.",
            page="doctor#weights",
        ) from error
