"""Gradient checkpointing without train mode.

transformers recomputes a layer only while the layer is in train mode, where dropout would act as well. A policy stays
in eval mode, so here the layers alone are switched, and what they contain stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
        again = partial(_Forwards.twice, layer)
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, context_fn=again)
    try:
        yield
    finally:
        for layer, (training, checkpointing) in zip(layers, before, strict=True):
            layer.training, layer.gradient_checkpointing = training, checkpointing


class _Forwards:
    """The forward methods that modules have been given by attribute: inside, they have them again.

    The backward pass recomputes a layer after the context is left in which somebody replaced them, and must meet the
    very same operations.
    """

    def __init__(self, layer: nn.Module) -> None:
        self._given = [(module, vars(module)["forward"]) for module in layer.modules() if "forward" in vars(module)]
        self._others: list[Any] = []

    @classmethod
    def twice(cls, layer: nn.Module) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """The contexts of a layer's first pass, where all is as it is, and of its recomputation."""
        return nullcontext(), cls(layer)

    def __enter__(self) -> None:
        self._others = [vars(module).get("forward") for module, _ in self._given]
        for module, forward in self._given:
            module.forward = forward

    def __exit__(self, *error: object) -> None:
        for (module, _), other in zip(self._given, self._others, strict=True):
            if other is None:
                del module.forward
            else:
                module.forward = other
