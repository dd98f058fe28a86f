"""Exports: folders that plain peft or plain transformers loads, with tokenizer and generation config."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from peft import PeftModel
from torch import nn
from transformers import GenerationConfig

from grpokit import UsageError, swapped
from grpokit_hf.models.adapters import quiet, stays_adapter
from grpokit_hf.models.quantized import is_quantised, stored_settings
from grpokit_hf.models.sources import in_package
from grpokit_hf.models.weights import save_generation, save_weights, save_whole, tensors_of
from grpokit_lm import sources
from grpokit_lm.loading import Loaded, LoadSettings, load_model


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
    known: Any = model
    alone = stays_adapter(model, merge=merge)
    (loaded.processor or loaded.tokenizer).save_pretrained(folder)
    if alone:
        save_weights(model, folder)
        save_generation(known, folder)
        return _facts(loaded, "peft", _ADAPTER_USAGE)
    whole = _merged(known, loaded) if isinstance(model, PeftModel) else known
    with swapped(whole, "generation_config", GenerationConfig()):
        save_whole(whole, folder)
    save_generation(whole, folder)
    return _facts(loaded, "transformers", _USAGE)


def _facts(loaded: Loaded, library: str, usage: str) -> dict[str, str]:
    text_only = loaded.processor is None
    kind = "AutoModelForCausalLM" if text_only else "AutoModelForImageTextToText"
    reader = "tokenizer" if text_only else "processor"
    code, shipped = usage.format(kind=kind, reader=reader, Reader=reader.capitalize()), in_package(loaded.name)
    place, gguf = sources.split_gguf(loaded.name)
    base = f'"{place}", gguf_file="{gguf}"' if gguf else '"BASE_MODEL"'
    config = "GgufConfig(dequantize=True)" if gguf else ""
    if loaded.quantization:
        bits = ", ".join(f"{key}={value!r}" for key, value in loaded.quantization.items())
        config = f"BitsAndBytesConfig({bits})"
    if config and "BASE_MODEL" in code:
        code = code.replace('"BASE_MODEL"', f"{base}, quantization_config={config}")
        code = code.replace(f"import {kind}", f"import {config.partition('(')[0]}, {kind}")
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
    if not is_quantised(model.get_base_model()):
        return copy.deepcopy(model).merge_and_unload(safe_merge=True)
    if stored_settings(sources.find(loaded.name, loaded.reading, own_tokenizer=False).config):
        raise UsageError(
            f"The adapter cannot be merged: its base '{loaded.name}' is quantised on disk. Leave out --merge; peft's "
            "merge_and_unload can then add what is written to the model in full precision."
        )
    settings = replace(
        LoadSettings.of(vars(loaded.reading)),
        lora={},
        tokenizer=loaded.processor or loaded.tokenizer,
        dtype="auto",
        quantization=None,
        device="cpu",  # the GPU may have room for the quantised weights only
    )
    full: Any = load_model(loaded.name, settings).model
    with quiet():
        adapted = PeftModel(full, copy.deepcopy(model.peft_config["default"]))
    trained = tensors_of(model)
    for name, tensor in tensors_of(adapted).items():
        tensor.data.copy_(trained[name])
    merged = adapted.merge_and_unload(safe_merge=True)
    precise = tuple(merged._keep_in_fp32_modules_strict or ())  # what a loading in bfloat16 would keep in float32
    for name, tensor in (*merged.named_parameters(), *merged.named_buffers()):
        if tensor.is_floating_point() and not any(part in name for part in precise):
            tensor.data = tensor.data.to(torch.bfloat16)
    return merged


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
