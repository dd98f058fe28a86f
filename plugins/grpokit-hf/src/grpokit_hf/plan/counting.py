"""Counts the weights of a model that has shapes and no values, for `grpokit plan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from grpokit.errors import UsageError
from grpokit_hf.models.quantized import layers_of
from grpokit_hf.plan.transformer import Sizes
from grpokit_plan import Remedy

QUANTISED = {"4bit": 0.516, "8bit": 1.0}  # bytes per weight; NF4 has a scale per 64 weights, quantised in turn
QUANTISE = Remedy(
    words=("policy.quantization=4bit",), price="the frozen weights are rounded to 4 bits; needs bitsandbytes"
)
"""Of a policy with frozen weights."""
EIGHT_BITS = Remedy(
    words=("trainer.optimizer=adamw_8bit",), price="AdamW's averages are rounded to 8 bits; needs bitsandbytes"
)
"""Of any policy."""


def stored(model: nn.Module, *, width: int, quantization: str | None) -> float:
    """Bytes of a model's weights.

    Args:
        model: without an adapter.
        width: bytes of a weight.
        quantization: of what `quantise` takes: "4bit", "8bit" or None.
    """
    weights = sum(p.numel() for p in model.parameters())
    if quantization is None:
        return float(width * weights)
    narrow = sum(layer.weight.numel() for layer in layers_of(model).values())
    return width * (weights - narrow) + QUANTISED[quantization] * narrow


def sizes_of(
    model: Any,
    *,
    decoder: nn.Module,
    head: nn.Linear,
    width: int,
    quantization: str | None = None,
    adapt: Callable[[], object] | None = None,
) -> Sizes:
    """The sizes of a transformer, and of all that is loaded with it.

    Args:
        model: all that is loaded, such as on torch's device "meta"; what requires no gradient does not train.
        decoder: its transformer, without the output layer.
        head: its output layer.
        width: bytes of a weight.
        quantization: of the linear layers but the output layer: "4bit", "8bit" or None.
        adapt: puts an adapter around the model; None trains the weights themselves.

    Raises:
        UsageError: it is no transformer whose sizes have the usual names, or `adapt` refuses it.
    """
    config = model.config.get_text_config()
    layers, hidden, heads = _counts(model, config)
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    matrices, active = _matrices(decoder, config)
    weights = sum(p.numel() for p in model.parameters())
    narrow = _linear(model, head) if quantization else 0
    quantised = QUANTISED[quantization] if quantization else float(width)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    adapted = adapter = ranks = 0
    if adapt is not None:
        adapt()
        with_one: list[Any] = [m for m in decoder.modules() if isinstance(m, BaseTunerLayer)]
        adapted = sum(m.get_base_layer().weight.numel() for m in with_one)
        ranks = sum(sum(m.r.values()) for m in with_one)
        adapter, trained = sum(p.numel() for p in model.parameters()) - weights, 0
    embeddings = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    return Sizes(
        layers=layers,
        hidden=hidden,
        mlp=_mlp(config, hidden),
        heads=heads,
        attention=heads * head_dim,
        keys=(getattr(config, "num_key_value_heads", None) or heads) * head_dim,
        vocabulary=head.weight.shape[0],
        matrices=matrices,
        active=active,
        stored=(weights - narrow) * width + narrow * quantised,
        wide=weights if width == 4 and not quantization else 0,
        width=quantised,
        trained=trained,
        tables=sum(weight.numel() for weight in embeddings if weight.requires_grad),
        adapted=adapted,
        adapter=adapter,
        ranks=ranks,
    )


def _linear(model: nn.Module, head: nn.Linear) -> int:
    """Weights of a model's linear layers but the output layer."""
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    return sum(m.weight.numel() for m in linears if m is not head)


def _counts(model: Any, config: Any) -> tuple[int, int, int]:
    """The number of layers, their width, and the heads of an attention."""
    try:
        return config.num_hidden_layers, config.hidden_size, config.num_attention_heads
    except AttributeError as error:
        raise UsageError(
            f"The plan knows transformers with attention, and the configuration of {type(model).__name__} has no "
            f"{error.name}."
        ) from error


def _matrices(decoder: nn.Module, config: Any) -> tuple[int, int]:
    """Weights of a decoder's matrices, embeddings aside, and how many of them one token is multiplied by."""
    embeddings = [m for m in decoder.modules() if isinstance(m, nn.Embedding)]
    tables = {id(p) for m in embeddings for p in m.parameters()}
    total = experts = 0
    for name, p in decoder.named_parameters():
        if p.ndim > 1 and id(p) not in tables:
            total += p.numel()
            experts += p.numel() if ".experts." in name else 0
    most = _experts(config)
    used = experts * config.num_experts_per_tok // most if experts and most else experts
    return total, total - experts + used


def _experts(config: Any) -> int:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    counts = [getattr(config, name, None) for name in names]
    return next(filter(None, counts), 0)


def _mlp(config: Any, hidden: int) -> int:
    if _experts(config):
        each = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
        return int(each * config.num_experts_per_tok)
    usual = getattr(config, "intermediate_size", None)
    of_gpt2 = getattr(config, "n_inner", None)
    return int(usual or of_gpt2 or 4 * hidden)
