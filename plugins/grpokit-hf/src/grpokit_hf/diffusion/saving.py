"""Writes a trained adapter as the file that diffusers and other programs load.

The names are those of diffusers, with "transformer." in front. The adapter's scale is multiplied into its second
factor, so that a program that reads no metadata, and takes the scale for 1, adds the same as one that reads them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import save_file

from grpokit.files import share

FILE = "pytorch_lora_weights.safetensors"
_PREFIX = "transformer"


def save_lora(model: PeftModel, folder: Path) -> None:
    """Write an adapter of a diffusion transformer.

    `pipeline.load_lora_weights(folder)` reads it where the pipeline has that method, and
    `pipeline.transformer.load_lora_adapter(folder, use_safetensors=True)` everywhere.

    Args:
        model: the transformer with its adapter.
        folder: exists already.
    """
    config: Any = model.peft_config["default"]
    scale = config.lora_alpha / (config.r**0.5 if config.use_rslora else config.r)
    tensors = {}
    for name, tensor in get_peft_model_state_dict(model, save_embedding_layers=False).items():
        own = tensor.detach().cpu() * (scale if ".lora_B." in name else 1)
        tensors[f"{_PREFIX}.{name.removeprefix('base_model.model.')}"] = own.contiguous()
    targets = config.target_modules
    facts = {
        "r": config.r,
        "lora_alpha": config.r,
        "target_modules": targets if isinstance(targets, str) else sorted(targets),
        "use_dora": config.use_dora,
    }
    named = {f"{_PREFIX}.{key}": value for key, value in facts.items()}
    metadata = {"format": "pt", "lora_adapter_metadata": json.dumps(named, indent=2, sort_keys=True)}
    save_file(tensors, folder / FILE, metadata=metadata)
    share(folder / FILE)
