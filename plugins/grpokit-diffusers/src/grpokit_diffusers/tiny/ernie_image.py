"""A tiny ERNIE-Image."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import ErnieImagePipeline, ErnieImageTransformer2DModel, FlowMatchEulerDiscreteScheduler
from tokenizers import processors
from transformers import Mistral3Model

from grpokit_diffusers.tiny.flux2 import mistral, mistral_tokenizer, vae
from grpokit_diffusers.tiny.parts import SMALL, WIDTH


def pipeline() -> ErnieImagePipeline:
    """With random weights, and without what enhances prompts."""
    transformer = ErnieImageTransformer2DModel(
        hidden_size=WIDTH,
        num_attention_heads=2,
        num_layers=2,
        ffn_hidden_size=37,
        in_channels=16,
        out_channels=16,
        text_in_dim=16,
        rope_axes_dim=(4, 6, 6),
    ).eval()
    with torch.no_grad():
        for layer in (transformer.adaLN_modulation[-1], transformer.final_linear):
            layer.weight.normal_(std=0.2)  # which begin as zeros
    return ErnieImagePipeline(
        transformer=transformer,
        vae=vae(),
        text_encoder=Mistral3Model(mistral({**SMALL, "hidden_size": 16, "head_dim": 4})).eval(),
        tokenizer=_tokenizer(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=4.0),
    )


def _tokenizer() -> Any:
    """Each text begins with a token of its own."""
    tokenizer = mistral_tokenizer(model_max_length=512)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return tokenizer
