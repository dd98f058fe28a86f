"""Gradient checkpointing without train mode.

transformers recomputes a layer only while the layer is in train mode, where dropout would act as well. A policy stays
in eval mode, so here the layers' forward methods are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from grpokit.errors import UsageError
from grpokit_hf.models.forwards import replaced_forwards


@contextmanager
def recomputed(model: nn.Module) -> Iterator[None]:
    """Inside the context, a forward pass keeps only the inputs of the model's layers and recomputes the rest.

    Memory falls from all activations to one tensor per layer; a training step takes about a third longer. Log-probs
    and gradients stay the same. Nothing may be sampled inside: a layer would write into a cache twice.

    Raises:
        UsageError: the model has no layers that can be recomputed.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UsageError(
            f"gradient_checkpointing: {type(model).__name__} has no layers that transformers can recompute. Leave it "
            "out, and use a smaller micro_batch_size."
        )
    with replaced_forwards((layer, _recomputing(layer)) for layer in layers):
        yield


def _recomputing(layer: nn.Module) -> Callable[..., Any]:
    return partial(checkpoint, layer.forward, use_reentrant=False, context_fn=partial(_both_passes, layer))


def _both_passes(layer: nn.Module) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """The contexts of a layer's first pass, where all is as it is, and of its recomputation.

    The backward pass recomputes a layer after the context is left in which someone replaced forward methods. It must
    meet the very same operations.
    """
    changed = [module for module in layer.modules() if "forward" in vars(module)]
    given = [(module, vars(module)["forward"]) for module in changed]
    return nullcontext(), replaced_forwards(given)
