"""Weights on disk: a checkpoint's, which come back to the bit, and an export, which other programs load.

Both are files of transformers and peft: an adapter folder for a policy with an adapter, a model folder for any other.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from grpokit import CheckpointError, UsageError, swapped
from grpokit.errors import counted, one_line
from grpokit_lm import sources
from grpokit_lm.adapters import quiet
from grpokit_lm.bars import progress_bars
from grpokit_lm.loading import Loaded, load_model
from grpokit_lm.quantized import stored_settings
from grpokit_lm.sources import in_package

MODEL, ADAPTER, ADAPTER_CONFIG = "model.safetensors", "adapter_model.safetensors", "adapter_config.json"


def save_weights(model: nn.Module, folder: Path) -> None:
    """Write the adapter alone if there is one, else all weights, with the configuration that belongs to them.

    Args:
        model: a model of transformers, or one with an adapter by peft.
        folder: exists already.
    """
    adapted = isinstance(model, PeftModel)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _tensors(model).items()}
    save_file(tensors, folder / (ADAPTER if adapted else MODEL), metadata={"format": "pt"})
    known: Any = model
    if adapted:
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
    _save_generation(known, folder)


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
    own = _tensors(model)
    try:
        with safe_open(path, framework="pt") as file:
            _compare({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}, own, path)  # noqa: SIM118
            for name, tensor in own.items():
                tensor.data.copy_(file.get_tensor(name))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"'{path}' cannot be read: {one_line(error)}.") from error


def export(model: nn.Module, loaded: Loaded, folder: Path, *, merge: bool = False) -> Mapping[str, str]:
    """Write a folder that plain peft or plain transformers loads, with tokenizer and generation config.

    Args:
        model: the trained model; it is not changed.
        loaded: where it came from.
        folder: exists already, and is empty.
        merge: add the adapter to the base, and write a whole model.

    Returns:
        Facts for a model card: `base_model`, `library_name`, `versions`, and `usage`, code that loads the folder.

    Raises:
        UsageError: there is no adapter to merge, or no base in full precision.
    """
    adapted = isinstance(model, PeftModel)
    if merge and not adapted:
        raise UsageError("There is no adapter to merge: this run trained the model's own weights. Leave out --merge.")
    known: Any = model
    (loaded.processor or loaded.tokenizer).save_pretrained(folder)
    if adapted and not merge:
        save_weights(model, folder)
        _save_generation(known, folder)
        return _facts(loaded, "peft", _ADAPTER_USAGE)
    whole = _merged(known, loaded) if adapted else known
    with progress_bars(f"save {folder}"), swapped(whole, "generation_config", GenerationConfig()):
        whole.save_pretrained(folder)
    _save_generation(whole, folder)
    return _facts(loaded, "transformers", _USAGE)


def _save_generation(model: Any, folder: Path) -> None:
    """Write a model's generation config as it is.

    Its own `save_pretrained` refuses some that models are published with, such as a temperature without `do_sample`.
    """
    if model.generation_config is not None:
        model.generation_config.to_json_file(folder / GENERATION_CONFIG_NAME, keys_to_pop=["compile_config"])


def _facts(loaded: Loaded, library: str, usage: str) -> dict[str, str]:
    text_only = loaded.processor is None
    kind = "AutoModelForCausalLM" if text_only else "AutoModelForImageTextToText"
    reader = "tokenizer" if text_only else "processor"
    code, shipped = usage.format(kind=kind, reader=reader, Reader=reader.capitalize()), in_package(loaded.name)
    if shipped is not None and "BASE_MODEL" in code:  # a name that transformers does not know
        package, path = shipped
        code = f"from importlib.resources import files\n\n{code}".replace(
            '"BASE_MODEL"', f'files("{package}") / "{path}"'
        )
    return {
        "base_model": loaded.name,
        "library_name": library,
        "versions": f"transformers {transformers.__version__}, peft {peft.__version__}",
        "usage": code,
    }


def _merged(model: Any, loaded: Loaded) -> Any:
    """The base with the adapter added, as a model of its own; a quantised base is loaded again in full."""
    if getattr(model.get_base_model(), "quantization_method", None) is None:
        return copy.deepcopy(model).merge_and_unload(safe_merge=True)
    if stored_settings(sources.find(loaded.name, own_tokenizer=False, **loaded.options).config):
        raise UsageError(
            f"The adapter cannot be merged: its base '{loaded.name}' is quantised on disk. Leave out --merge; peft's "
            "merge_and_unload can then add what is written to the model in full precision."
        )
    reader = loaded.processor or loaded.tokenizer
    # On the CPU, since the GPU may have room for the quantised weights only.
    full: Any = load_model(loaded.name, tokenizer=reader, trains_base=False, device="cpu", **loaded.options).model
    with quiet():
        adapted = PeftModel(full, copy.deepcopy(model.peft_config["default"]))
    trained = _tensors(model)
    for name, tensor in _tensors(adapted).items():
        tensor.data.copy_(trained[name])
    merged = adapted.merge_and_unload(safe_merge=True)
    precise = tuple(merged._keep_in_fp32_modules_strict or ())  # what a loading in bfloat16 would keep in float32
    for name, tensor in (*merged.named_parameters(), *merged.named_buffers()):
        if tensor.is_floating_point() and not any(part in name for part in precise):
            tensor.data = tensor.data.to(torch.bfloat16)
    return merged


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Name -> tensor of all that a checkpoint holds; tied weights once. Changing a tensor changes the model."""
    if isinstance(model, PeftModel):
        adapter: dict[str, Tensor] = get_peft_model_state_dict(
            model, save_embedding_layers=False
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


_USAGE = """from transformers import {kind}, Auto{Reader}

model = {kind}.from_pretrained("FOLDER")
{reader} = Auto{Reader}.from_pretrained("FOLDER")
"""

_ADAPTER_USAGE = """from peft import PeftModel
from transformers import {kind}, Auto{Reader}

model = {kind}.from_pretrained("BASE_MODEL")
model = PeftModel.from_pretrained(model, "FOLDER")
{reader} = Auto{Reader}.from_pretrained("FOLDER")
"""
