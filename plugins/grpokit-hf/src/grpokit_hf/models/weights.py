"""Weights on disk: a checkpoint's come back to the bit.

They are files of transformers and peft: an adapter folder for a model with an adapter, a model folder for any other.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.utils import GENERATION_CONFIG_NAME

from grpokit.errors import CheckpointError, counted, one_line
from grpokit.files import share
from grpokit_hf.models.bars import progress_bars

MODEL, ADAPTER = "model.safetensors", "adapter_model.safetensors"


def save_weights(model: nn.Module, folder: Path) -> None:
    """Write the adapter alone if there is one, else all weights, with the configuration that belongs to them.

    Args:
        model: a model of transformers, or one with an adapter by peft.
        folder: exists already.
    """
    save_tensors(model, folder)
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


def save_tensors(model: nn.Module, folder: Path) -> None:
    """Write the weights alone, which is all that `load_weights` reads: the adapter's if there is one."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors_of(model).items()}
    path = folder / (ADAPTER if isinstance(model, PeftModel) else MODEL)
    save_file(tensors, path, metadata={"format": "pt"})
    share(path)


def save_whole(model: Any, folder: Path) -> None:
    """Write a whole model or pipeline as its library does, with a progress bar, in files that others may read too."""
    with progress_bars(f"save {folder}"):
        model.save_pretrained(folder)
    share(folder)


def load_weights(model: nn.Module, folder: Path) -> None:
    """Read what `save_weights` wrote for the same model, to the bit.

    Raises:
        CheckpointError: the file is missing, damaged, or of another model.
    """
    path = folder / (ADAPTER if isinstance(model, PeftModel) else MODEL)
    if not path.is_file():
        other = folder / (MODEL if isinstance(model, PeftModel) else ADAPTER)
        kind = "an adapter" if other.name == ADAPTER else "whole weights, without an adapter"
        why = f": the folder holds {kind}. Use the same lora as in its run" if other.is_file() else ""
        raise CheckpointError(f"'{path}' is missing{why}.")
    own = tensors_of(model)
    try:
        with safe_open(path, framework="pt") as file:
            _compare({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}, own, path)  # noqa: SIM118
            for name, tensor in own.items():
                tensor.data.copy_(file.get_tensor(name))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"'{path}' cannot be read: {one_line(error)}.") from error


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
        state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
        adapter: dict[str, Tensor] = get_peft_model_state_dict(
            model, state, save_embedding_layers=False
        )  # "auto" asks the hub
        return adapter
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - set(parameters)
    return parameters | {n: x for n, x in model.state_dict().items() if n not in parameters and n not in tied}


def _compare(theirs: Mapping[str, tuple[int, ...]], own: Mapping[str, Tensor], path: Path) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    changed = sorted(name for name in {*theirs, *shapes} if theirs.get(name) != shapes.get(name))
    if changed:
        first = changed[0]
        sides = [
            f"{list(shape)}" if shape is not None else "absent" for shape in (theirs.get(first), shapes.get(first))
        ]
        raise CheckpointError(
            f"'{path}' belongs to another model or adapter: it differs in {counted(len(changed), 'tensor')}, such as "
            f"'{first}', which is {sides[0]} in the file and {sides[1]} here."
        )
