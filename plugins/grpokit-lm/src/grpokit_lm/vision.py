"""What of a vision-language model trains: its language model alone, or the vision tower as well."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from grpokit import UsageError
from grpokit_lm.pictures import Reading


def freeze_vision(model: Any) -> None:
    """Let only the language model and its head train: no vision tower, nor what leads from there."""
    for parameter in _vision(model):
        parameter.requires_grad_(False)


def freeze_unread(model: Any, example: Reading) -> None:
    """Freeze what a picture does not pass through, such as the last layer of LLaVA's tower, which reads the one before.

    Args:
        model: a vision-language model.
        example: a prompt with a picture.

    Raises:
        UsageError: nothing is left that could train.
    """
    tower = [parameter for parameter in _vision(model) if parameter.requires_grad]
    if not tower:
        raise UsageError(
            "train_vision is true, and all of the model's vision tower is frozen, maybe by an earlier policy. Load the "
            "model again, or let its parameters require gradients."
        )
    pictures = {name: x.to(model.device) for name, x in example.pictures.items()}
    logits = model(input_ids=example.tokens[None].to(model.device), use_cache=False, **pictures).logits
    gradients = torch.autograd.grad(logits.float().sum(), tower, allow_unused=True)
    for parameter, gradient in zip(tower, gradients, strict=True):
        parameter.requires_grad_(gradient is not None)


def _vision(model: Any) -> list[nn.Parameter]:
    """The parameters of a vision tower and of what leads from there; none in a model of language only."""
    if model.config.get_text_config() is model.config:
        return []
    own = {id(p) for part in (model.get_decoder(), model.get_output_embeddings()) for p in part.parameters()}
    return [parameter for parameter in model.parameters() if id(parameter) not in own]
