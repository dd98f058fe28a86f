"""Exports: a folder that plain diffusers, transformers and peft load.

An adapter is written alone. Merged, or trained in full, the autoregressive half is written with all other parts as a
whole pipeline, its vision tower included.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import peft
import transformers
from diffusers import GlmImagePipeline
from peft import PeftModel
from torch import nn

from grpokit_glm_image.pipeline import Loaded, whole_writer
from grpokit_hf.diffusion.saving import save_lora
from grpokit_hf.models.adapters import quiet, stays_adapter
from grpokit_hf.models.quantized import check_whole, remark
from grpokit_hf.models.sources import in_package
from grpokit_hf.models.weights import save_weights, save_whole, tensors_of


def export(
    model: nn.Module, loaded: Loaded, folder: Path, *, size: tuple[int, int], edits: bool, merge: bool = False
) -> Mapping[str, str]:
    """Write the trained half for other programs.

    Args:
        model: the trained autoregressive half, or the adapter around it; it is not changed.
        loaded: where it came from.
        folder: exists already, and is empty.
        size: height and width of the pictures that it was trained on.
        edits: whether it was trained on edits.
        merge: add the adapter to the base, and write a whole pipeline.

    Returns:
        Facts for a model card: `base_model`, `library_name`, `versions`, and `usage`, code that loads the folder.

    Raises:
        UsageError: there is no adapter to merge, or no base in full precision.
    """
    check_whole(model, merge=merge)
    if stays_adapter(model, merge=merge):
        save_weights(model, folder)
        return _facts(loaded, "peft", remark(model) + _ADAPTER_USAGE, size, edits=edits)
    parts = loaded.pipeline.components | {"vision_language_encoder": _whole(model, loaded)}
    save_whole(GlmImagePipeline(**parts), folder)
    return _facts(loaded, "diffusers", _USAGE, size, edits=edits)


def export_painter(
    model: nn.Module, loaded: Loaded, folder: Path, *, size: tuple[int, int], edits: bool, merge: bool = False
) -> Mapping[str, str]:
    """Write the trained diffusion half for other programs.

    Args:
        model: the trained transformer, or the adapter around it; it is not changed.
        loaded: where it came from.
        folder: exists already, and is empty.
        size: height and width of the pictures that it was trained on.
        edits: whether it was trained on edits.
        merge: add the adapter to the base, and write a whole pipeline.

    Returns:
        Facts for a model card, as `export`.

    Raises:
        UsageError: there is no adapter to merge, or no base in full precision.
    """
    check_whole(model, merge=merge)
    if stays_adapter(model, merge=merge):
        save_lora(model, folder)
        return _facts(loaded, "diffusers", remark(model) + _PAINTER_USAGE, size, edits=edits)
    own = copy.deepcopy(model).to("cpu")
    painter = own.merge_and_unload(safe_merge=True) if isinstance(own, PeftModel) else own
    writer = whole_writer(loaded) if loaded.ar.model.visual is None else loaded.ar
    parts = loaded.pipeline.components | {"vision_language_encoder": writer, "transformer": painter}
    save_whole(GlmImagePipeline(**parts), folder)
    return _facts(loaded, "diffusers", _USAGE, size, edits=edits)


def _whole(model: Any, loaded: Loaded) -> Any:
    """The trained half with its vision tower, and with the adapter added; a model of its own on the CPU."""
    if loaded.ar.model.visual is not None:
        whole = copy.deepcopy(model).to("cpu")
    else:  # text to image does without, so the tower is read now
        whole = whole_writer(loaded)
        if isinstance(model, PeftModel):
            with quiet():
                whole = PeftModel(whole, copy.deepcopy(model.peft_config["default"]))
        own = tensors_of(whole)
        for name, tensor in tensors_of(model).items():
            own[name].data.copy_(tensor)
    return whole.merge_and_unload(safe_merge=True) if isinstance(whole, PeftModel) else whole


def _facts(loaded: Loaded, library: str, usage: str, size: tuple[int, int], *, edits: bool) -> dict[str, str]:
    height, width = size
    asked = '"add snow", image=[Image.open("source.png")]' if edits else '"a cat on a wall"'
    usage, shipped = usage.format(asked=asked, height=height, width=width), in_package(loaded.name)
    if edits:
        usage = f"from PIL import Image\n{usage}"
    if loaded.name == "tiny":
        usage = f"# The base is written by: python -m grpokit_glm_image.tiny tiny\n{usage}"
    elif shipped is not None and "BASE_MODEL" in usage:  # a name that diffusers does not know
        package, path = shipped
        usage = f"from importlib.resources import files\n\n{usage}".replace(
            '"BASE_MODEL"', f'files("{package}") / "{path}"'
        )
    return {
        "base_model": loaded.name,
        "library_name": library,
        "versions": f"diffusers {diffusers.__version__}, transformers {transformers.__version__}, "
        f"peft {peft.__version__}",
        "usage": usage,
    }


_ADAPTER_USAGE = """import torch
from diffusers import GlmImagePipeline
from peft import PeftModel

pipe = GlmImagePipeline.from_pretrained("BASE_MODEL", torch_dtype=torch.bfloat16)
PeftModel.from_pretrained(pipe.vision_language_encoder, "FOLDER")  # changes the pipeline's own layers
picture = pipe({asked}, height={height}, width={width}).images[0]
"""

_USAGE = """import torch
from diffusers import GlmImagePipeline

pipe = GlmImagePipeline.from_pretrained("FOLDER", torch_dtype=torch.bfloat16)
picture = pipe({asked}, height={height}, width={width}).images[0]
"""

_PAINTER_USAGE = """import torch
from diffusers import GlmImagePipeline

pipe = GlmImagePipeline.from_pretrained("BASE_MODEL", torch_dtype=torch.bfloat16)
pipe.transformer.load_lora_adapter("FOLDER", use_safetensors=True)
picture = pipe({asked}, height={height}, width={width}).images[0]
"""
