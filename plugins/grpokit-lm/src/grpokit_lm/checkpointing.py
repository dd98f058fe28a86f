"""Gradient checkpointing without train mode.

transformers recomputes a layer only while the layer is in train mode, where dropout would act as well. A policy stays
in eval mode, so here the layers alone are switched, and what they contain stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from grpokit import UsageError


@contextmanager
def recomputed(model: nn.Module) -> Iterator[None]:
    """Inside the context, a forward pass keeps only the inputs of the model's layers and recomputes the rest.

    Memory falls from all activations to one tensor per layer; a training step takes about a third longer. Log-probs
    and gradients stay the same. Nothing may be sampled inside: the layers then ignore a cache.

    Raises:
        UsageError: the model has no layers that can be recomputed.
    """
    layers: list[Any] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UsageError(
            f"gradient_checkpointing: {type(model).__name__} has no layers that transformers can recompute. Leave it "
            "out, and use a smaller micro_batch_size."
        )
    before = [(layer.training, layer.gradient_checkpointing) for layer in layers]
    for layer in layers:
        layer.training, layer.gradient_checkpointing = True, True  # this module's own flags, not its children's
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
    try:
        yield
    finally:
        for layer, (training, checkpointing) in zip(layers, before, strict=True):
            layer.training, layer.gradient_checkpointing = training, checkpointing
