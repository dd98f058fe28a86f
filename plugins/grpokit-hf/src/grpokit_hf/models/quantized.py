"""Quantised weights, made here, while they are loaded, or stored in a checkpoint: where they work, and what can train.

Under an adapter they stay as they are (QLoRA). Without one, an optimizer would train the embeddings and norms alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedConfig

from grpokit.errors import UsageError, require
from grpokit_hf.models.adapters import inner
from grpokit_hf.models.blocks import block_lists

Quantization = Literal["4bit", "8bit"]
"""Bits of a frozen weight, as bitsandbytes rounds it."""

_FULL = "name the model in full precision"
_NF4 = {"compress_statistics": True, "quant_type": "nf4"}


def check_stored(name: str, config: PreTrainedConfig, *, quantization: str | None, trains_base: bool) -> None:
    """Refuse a model that is quantised already, where it cannot work; the key `quantization` then has no meaning.

    Raises:
        UsageError: the key is given, the weights are to be trained, or bitsandbytes is missing.
    """
    stored = stored_settings(config)
    if stored and quantization is not None:
        raise UsageError(f"The model '{name}' is quantised already. Leave quantization out, or {_FULL}.")
    if stored.get("quant_method") == "bitsandbytes" or stored.get("load_in_4bit") or stored.get("load_in_8bit"):
        what = f"The quantised model '{name}'"
        if trains_base:
            raise UsageError(
                f"{what} is for frozen weights: quantised weights cannot be trained. Add an adapter with lora: "
                f"{{r: 16}}, or {_FULL}."
            )
        require("bitsandbytes", least="0.49", what=what)


def check_trainable(name: str, model: nn.Module) -> None:
    """Refuse full training of a quantised model, whoever quantised it.

    Raises:
        UsageError: some weights are no numbers that an optimizer can change by a little.
    """
    weights = dict(model.named_parameters())
    odd = [own for own, p in weights.items() if not p.is_floating_point() or p.element_size() == 1]
    if odd or is_quantised(model):
        such = f" (such as '{odd[0]}')" if odd else ""
        raise UsageError(
            f"The model '{name}' has quantised weights{such}, which cannot be trained. Add an adapter with lora: "
            f"{{r: 16}}, or {_FULL}."
        )


def check_whole(model: nn.Module, *, merge: bool) -> None:
    """Refuse to merge an adapter into weights that were rounded, where the others are not at hand.

    Raises:
        UsageError: the model is quantised, and `merge` is set.
    """
    if merge and is_quantised(inner(model)):
        raise UsageError(
            "The adapter cannot be merged into a quantised base. Leave out --merge: the adapter works on the base in "
            "full precision too, and diffusers' fuse_lora or peft's merge_and_unload adds it there."
        )


def is_quantised(model: nn.Module) -> bool:
    """Whether a model says that it was quantised, by whomever."""
    return getattr(model, "quantization_method", None) is not None


def stored_settings(config: PreTrainedConfig) -> Mapping[str, Any]:
    """How a model is quantised, by its configuration; empty if it is not."""
    stored = getattr(config, "quantization_config", None) or {}
    return stored if isinstance(stored, Mapping) else stored.to_dict()


def bitsandbytes_settings(quantization: str, compute: torch.dtype) -> dict[str, Any]:
    """The keywords of `BitsAndBytesConfig`: "4bit" (NF4, doubly quantised) or "8bit"."""
    if quantization == "8bit":
        return {"load_in_8bit": True}
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": str(compute).removeprefix("torch."),
    }


def bitsandbytes_config(quantization: str, compute: torch.dtype) -> Any:
    """What transformers wants to know to quantise weights while it loads them. Its model then needs `steady`."""
    config: Any = BitsAndBytesConfig
    return config(**bitsandbytes_settings(quantization, compute))


def remark(model: nn.Module) -> str:
    """A comment for the code of a model card, if an adapter's base was quantised by `quantise`; else empty."""
    base: Any = inner(model)
    if not is_quantised(base):
        return ""
    bits = 4 if getattr(base, "is_loaded_in_4bit", False) else 8
    return f"# The adapter was trained on a base of {bits} bits. This code loads the base in full precision.\n"


def layers_of(model: nn.Module) -> dict[str, nn.Linear]:
    """The layers that `quantise` takes, by name: linear ones in lists of blocks of one kind, where most weights are.

    What leads into the blocks and out of them stays, as do layers that the model's code wants in float32.
    """
    inside = {part for blocks in block_lists(model) for part in blocks.modules()}
    precise = {*(getattr(model, "_keep_in_fp32_modules", None) or ())}
    layers = {}
    for name, module in model.named_modules():
        if type(module) is nn.Linear and module in inside and precise.isdisjoint(name.split(".")):
            layers[name] = module
    return layers


def quantise(model: nn.Module, quantization: str, *, device: torch.device | str) -> None:
    """Quantise a frozen model in place, layer by layer on the way to a device; all else of it goes there as it is.

    The same weights always become the same bits.

    Args:
        model: on the CPU, in the type that it shall compute in.
        quantization: "4bit" (NF4, doubly quantised) or "8bit" (a scale per output).
        device: the target.
    """
    from bitsandbytes.nn import Int8Params, Linear4bit, Linear8bitLt, Params4bit

    known: Any = model
    for name, own in layers_of(model).items():
        sizes, bias = (own.in_features, own.out_features), own.bias is not None
        layer: Any
        if quantization == "4bit":
            layer = Linear4bit(*sizes, bias=bias, compute_dtype=own.weight.dtype, device="meta", **_NF4)
            weight = Params4bit(own.weight.data, requires_grad=False, module=layer, **_NF4)
            layer.weight = weight.to(device)
        else:
            layer = Linear8bitLt(*sizes, bias=bias, has_fp16_weights=False, device="meta")
            layer.weight = Int8Params(own.weight.data, requires_grad=False).to(device)
            layer.weight.CB = None  # the weights once more
        layer.bias = own.bias
        model.set_submodule(name, layer.train(own.training))
    known.quantization_method = "bitsandbytes"
    setattr(model, f"is_loaded_in_{quantization}", True)  # which peft asks for
    steady(nn.Module.to(model, device))


def steady(model: nn.Module) -> None:
    """Let layers of bitsandbytes compute a row alike in sampling and in training, whatever is beside it.

    On a CPU, a 4-bit layer would pack its weights into another form, rounded again, through which no gradient flows.
    """
    if "bitsandbytes" not in sys.modules:  # so no layer can be of it
        return
    from bitsandbytes.nn import Linear4bit, Linear8bitLt

    from grpokit_hf.models.eight_bits import Linear8bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False
        elif type(module) is Linear8bitLt:
            module.__class__ = Linear8bit
