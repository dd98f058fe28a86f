"""Quantised weights, made while they are loaded or stored in a checkpoint: where they work, and what can train.

Under an adapter they stay as they are (QLoRA). Without one, an optimizer would train the embeddings and norms alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import torch
from transformers import BitsAndBytesConfig, PreTrainedConfig, PreTrainedModel

from grpokit.errors import UsageError

_FULL = "name the model in full precision"


def check_setting(quantization: str | None, *, trains_base: bool, device: str | None) -> None:
    """Refuse the key `quantization` where it cannot work.

    Raises:
        UsageError: it is neither "4bit" nor "8bit", the weights are to be trained, or something is missing.
    """
    if quantization is None:
        return
    if quantization not in ("4bit", "8bit"):
        raise UsageError(f"quantization must be '4bit' or '8bit', got {quantization!r}.")
    what, remedy = f"quantization '{quantization}'", "leave quantization out"
    _check_bitsandbytes(what, remedy, trains_base=trains_base, device=device)


def check_stored(
    name: str, config: PreTrainedConfig, *, quantization: str | None, trains_base: bool, device: str
) -> None:
    """Refuse a model that is quantised already, where it cannot work; the key `quantization` then has no meaning.

    Raises:
        UsageError: as `check_setting` for bitsandbytes, or the key is given.
    """
    stored = stored_settings(config)
    if stored and quantization is not None:
        raise UsageError(f"The model '{name}' is quantised already. Leave quantization out, or {_FULL}.")
    if stored.get("quant_method") == "bitsandbytes" or stored.get("load_in_4bit") or stored.get("load_in_8bit"):
        _check_bitsandbytes(f"The quantised model '{name}'", _FULL, trains_base=trains_base, device=device)


def check_trainable(name: str, model: PreTrainedModel) -> None:
    """Refuse full training of a quantised model, whoever quantised it.

    Raises:
        UsageError: some weights are no numbers that an optimizer can change by a little.
    """
    odd = [own for own, p in model.named_parameters() if not p.is_floating_point() or p.element_size() == 1]
    if odd or getattr(model, "quantization_method", None) is not None:
        such = f" (such as '{odd[0]}')" if odd else ""
        raise UsageError(
            f"The model '{name}' has quantised weights{such}, which cannot be trained. Add an adapter with lora: "
            f"{{r: 16}}, or {_FULL}."
        )


def stored_settings(config: PreTrainedConfig) -> Mapping[str, Any]:
    """How a model is quantised, by its configuration; empty if it is not."""
    stored = getattr(config, "quantization_config", None) or {}
    return stored if isinstance(stored, Mapping) else stored.to_dict()


def bitsandbytes_config(quantization: str, compute: torch.dtype) -> Any:
    """What transformers wants to know to quantise weights while it loads them."""
    config: Any = BitsAndBytesConfig
    if quantization == "8bit":
        return config(load_in_8bit=True)
    return config(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
    )


def _check_bitsandbytes(what: str, remedy: str, *, trains_base: bool, device: str | None) -> None:
    if trains_base:
        raise UsageError(
            f"{what} is for frozen weights: quantised weights cannot be trained. Add an adapter with lora: {{r: 16}}, "
            f"or {remedy}."
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UsageError(f"{what} needs bitsandbytes, which is not installed. Run: pip install 'bitsandbytes>=0.46'")
    if device == "cpu" or not torch.cuda.is_available():
        raise UsageError(
            f"{what} needs a CUDA device: on a CPU, bitsandbytes packs weights into a form through which no gradient "
            f"flows. {remedy[0].upper()}{remedy[1:]}, or train on a GPU."
        )
