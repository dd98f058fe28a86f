"""A LoRA of a diffusion transformer that someone has trained, as the start of a run.

It comes as one file of safetensors. Its scale is multiplied into its second factor, and all of its layers get the
largest rank among them, padded with zeros: it adds what it added before, and its alpha is its rank.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from peft import LoraConfig, PeftModel, set_peft_model_state_dict
from safetensors import safe_open
from torch import Tensor, nn

from grpokit.errors import UsageError, one_line, plural
from grpokit_hf.diffusion.saving import FILE
from grpokit_hf.models import sources
from grpokit_hf.models.adapters import around
from grpokit_hf.models.bars import progress_bars
from grpokit_hf.models.sources import SourceSettings

_NEED = "Give a .safetensors file, a folder with one, such as `grpokit export` writes, or a hub id like 'org/name'."
_CONVERT = (
    "A pickled file may hold code. Convert it: "
    "safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'lora.safetensors')."
)
_NAME = re.compile(r"transformer\.(.+)\.(lora_A\.weight|lora_B\.weight|lora_magnitude_vector)")


@dataclass(frozen=True, kw_only=True)
class LoraFile:
    """What a file holds, in the names of diffusers.

    Attributes:
        tensors: "transformer.LAYER.lora_A.weight" [r, in] and "...lora_B.weight" [out, r], with DoRA
            "...lora_magnitude_vector" [out], and perhaps "...alpha".
        metadata: peft's configuration, each name with "transformer." in front; may be empty.
    """

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, Any]


def find_lora(adapter: str | Path, source: SourceSettings) -> Path:
    """The file of a LoRA; it is not read.

    Args:
        adapter: a file, a folder with one, or a hub id.
        source: which files of a hub's repository.

    Raises:
        UsageError: there is no such file, or more than one that it may be.
    """
    name, what = str(adapter), f"lora: adapter: '{adapter}'"
    place = sources.local(name)
    if place is not None and source.revision is not None:
        raise UsageError(f"lora: revision is for the hub's repositories, and '{name}' is not one. Remove it.")
    if place is None:
        files = sources.locate(name, source)
        options = {option: files.options[option] for option in ("revision", "local_files_only")}
        try:
            with progress_bars(f"fetch {name}"):
                place = Path(snapshot_download(name, allow_patterns=["*.safetensors"], **options))
        except (OSError, ValueError) as error:
            raise UsageError(f"lora: adapter: {sources.why_not(files, error, what='adapter')}") from error
    if not place.exists():
        raise UsageError(f"{what} does not exist. {_NEED}")
    if place.is_file():
        if place.suffix != ".safetensors":
            raise UsageError(f"{what} is not a safetensors file. {_CONVERT}")
        return place
    if (place / FILE).is_file():
        return place / FILE
    inside = sorted(place.glob("*.safetensors"))
    if not inside:
        pickled = sources.has(place, ("*.bin", "*.pt", "*.pth", "*.ckpt"))
        raise UsageError(f"{what} has no .safetensors file. {_CONVERT if pickled else _NEED}")
    if len(inside) > 1:
        names = ", ".join(file.name for file in inside)
        raise UsageError(f"{what} has {len(inside)}: {names}. Name one of them, by its path in '{place}'.")
    return inside[0]


def read_lora(file: Path) -> LoraFile:
    """Read a file in the names of diffusers.

    Raises:
        OSError, ValueError, SafetensorError: it cannot be read.
    """
    with safe_open(file, framework="pt") as opened:
        metadata = json.loads((opened.metadata() or {}).get("lora_adapter_metadata", "{}"))
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        return LoraFile(tensors=tensors, metadata=metadata)


def continue_lora(transformer: nn.Module, lora: LoraFile, *, name: str) -> PeftModel:
    """Put a trained LoRA around a transformer, in float32, so that it trains on.

    Args:
        transformer: of diffusers; on the device "meta" only the fit is looked at.
        lora: the file.
        name: as the user named it.

    Raises:
        UsageError: it changes other things than the transformer's linear layers, or does not fit them.
    """
    what = f"lora: adapter: '{name}'"
    tensors, alphas = _factors_and_alphas(lora)
    matches = {key: _NAME.fullmatch(key) for key in tensors}
    strange = [key for key, match in matches.items() if match is None]
    if strange or not tensors:
        got = f"has {plural(len(strange), 'tensor')} of another kind, such as '{strange[0]}'" if strange else "is empty"
        raise UsageError(
            f"{what} {got}. Only LoRA and DoRA of the transformer can be trained, in the names of diffusers "
            "('transformer.LAYER.lora_A.weight'), or in others that the pipeline's own load_lora_weights reads."
        )
    layers = sorted({match[1] for match in matches.values() if match is not None})
    linear = {key for key, module in transformer.named_modules() if isinstance(module, nn.Linear)}
    other = [layer for layer in layers if layer not in linear]
    if other:
        raise UsageError(
            f"{what} does not fit {type(transformer).__name__}, which has no linear layer '{other[0]}'. It is that of "
            "another model, or changes more than linear layers."
        )
    lone = [layer for layer in layers if not {f"transformer.{layer}.lora_{x}.weight" for x in "AB"} <= {*tensors}]
    if lone:
        raise UsageError(f"{what} is incomplete: of '{lone[0]}' it has one factor of two.")
    rank = max(len(tensors[f"transformer.{layer}.lora_A.weight"]) for layer in layers)
    weights = {}
    for layer in layers:
        down, up = (tensors[f"transformer.{layer}.lora_{x}.weight"] for x in "AB")
        lack = rank - len(down)
        scale = _scale(layer, len(down), alphas, lora.metadata)
        weights[f"base_model.model.{layer}.lora_A.weight"] = nn.functional.pad(down, (0, 0, 0, lack))
        weights[f"base_model.model.{layer}.lora_B.weight"] = nn.functional.pad(up * scale, (0, lack))
    magnitudes = {key: x for key, x in tensors.items() if key.endswith("magnitude_vector")}
    if magnitudes and len(magnitudes) < len(layers):
        raise UsageError(
            f"{what} has DoRA in some of its layers and LoRA in others. Only one of the two can be trained."
        )
    weights |= {f"base_model.model.{key.removeprefix('transformer.')}": x for key, x in magnitudes.items()}
    pattern = "|".join(map(re.escape, layers))  # in full: names alone would match the ends of others
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=pattern, use_dora=bool(magnitudes))
    try:
        model = around(transformer, config)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*to a meta parameter")  # a skeleton takes no values
            set_peft_model_state_dict(model, weights)
    except RuntimeError as error:
        raise UsageError(f"{what} does not fit {type(transformer).__name__}: {one_line(error)}.") from error
    return model


def _factors_and_alphas(lora: LoraFile) -> tuple[dict[str, Tensor], dict[str, float]]:
    """What a file holds, by name: tensors in float32, and numbers."""
    tensors, alphas = {}, {}
    for key, x in lora.tensors.items():
        if key.endswith(".alpha"):
            alphas[key] = float(x)
        else:
            tensors[key] = x.float()
    return tensors, alphas


def _scale(layer: str, rank: int, alphas: Mapping[str, float], metadata: Mapping[str, Any]) -> float:
    """What the product of a layer's two factors is multiplied with."""
    own = {key.removeprefix("transformer."): value for key, value in metadata.items()}
    alpha = alphas.get(f"transformer.{layer}.alpha", own.get("lora_alpha", rank))
    for pattern, value in (own.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", layer):
            alpha = value
    return float(alpha) / (rank**0.5 if own.get("use_rslora") else rank)
