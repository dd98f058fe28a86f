"""The weights that train: a checkpoint's come back to the bit.

An export has files of transformers and peft: an adapter folder for a model with an adapter, else a model folder.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.utils import GENERATION_CONFIG_NAME

from grpokit.errors import CheckpointError, plural
from grpokit.files import share
from grpokit_hf.models.bars import progress_bars

MODEL, ADAPTER = "model.safetensors", "adapter_model.safetensors"
_ADAPTED = "base_model.model."  # how names in a model of peft begin


def save_weights(model: nn.Module, folder: Path) -> None:
    """Write the adapter alone if there is one, else all weights, with the configuration that belongs to them.

    Args:
        model: a model of transformers, or one with an adapter by peft.
        folder: exists already.
    """
    tensors = tensors_of(model)
    for name, tensor in tensors.items():
        tensors[name] = tensor.detach().cpu().contiguous()
    path = folder / (ADAPTER if isinstance(model, PeftModel) else MODEL)
    save_file(tensors, path, metadata={"format": "pt"})
    share(path)
    known: Any = model
    if isinstance(model, PeftModel):
        config = copy.deepcopy(known.peft_config["default"])
        config.inference_mode = True
        for name in ("target_modules", "exclude_modules"):
            value = getattr(config, name)
            if isinstance(value, set):  # which has another order in every process; else a pattern
                setattr(config, name, sorted(value))
        config.save_pretrained(str(folder))
        return
    config = copy.deepcopy(known.config)
    config.architectures, config.dtype = [type(model).__name__], known.dtype
    config.save_pretrained(folder)
    save_generation(known, folder)


def save_whole(model: Any, folder: Path) -> None:
    """Write a whole model or pipeline as its library does, with a progress bar, in files that others may read too."""
    with progress_bars(f"save {folder}"):
        model.save_pretrained(folder)
    share(folder)


def load_weights(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Take over what `tensors_of` gave for the same model, to the bit.

    Args:
        model: what gets the weights.
        state: a policy's; plain data, and names with a slash, are of other parts of it.

    Raises:
        CheckpointError: it is of another model.
    """
    names = [name for name in state if "/" not in name]
    theirs = {name: state[name] for name in names if isinstance(state[name], Tensor)}
    own = tensors_of(model)
    _compare(theirs, own, adapted=isinstance(model, PeftModel))
    for name, tensor in own.items():
        tensor.data.copy_(theirs[name])


def save_generation(model: Any, folder: Path) -> None:
    """Write a model's generation config as it is.

    Its own `save_pretrained` refuses some that models are published with, such as a temperature without `do_sample`.
    """
    if model.generation_config is not None:
        model.generation_config.to_json_file(folder / GENERATION_CONFIG_NAME, keys_to_pop=["compile_config"])


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Name -> tensor of all that a checkpoint holds; tied weights once. Changing a tensor changes the model."""
    if isinstance(model, PeftModel):
        # Not its state_dict(), in which FSDP2 lets go of a frozen base that is gathered.
        state: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        state |= dict(model.named_buffers())
        adapter: dict[str, Tensor] = get_peft_model_state_dict(
            model, state, save_embedding_layers=False
        )  # "auto" asks the hub
        return adapter
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    with_tied = dict(model.named_parameters(remove_duplicate=False))
    others = {name: x for name, x in model.state_dict().items() if name not in with_tied}
    return parameters | others


def _compare(theirs: Mapping[str, Tensor], own: Mapping[str, Tensor], *, adapted: bool) -> None:
    found = {name: list(x.shape) for name, x in theirs.items()}
    wanted = {name: list(x.shape) for name, x in own.items()}
    if any(name.startswith(_ADAPTED) for name in found) != adapted:
        kind = "whole weights, without an adapter" if adapted else "an adapter"
        raise CheckpointError(f"holds {kind}. Use the same lora as in its run.")
    names = sorted({*found, *wanted})
    changed = [name for name in names if found.get(name) != wanted.get(name)]
    if changed:
        first = changed[0]
        raise CheckpointError(
            f"belongs to another model or adapter: it differs in {plural(len(changed), 'tensor')}, such as '{first}', "
            f"which is {found.get(first, 'absent')} there and {wanted.get(first, 'absent')} here."
        )
