"""A tiny FLUX.1."""

from __future__ import annotations

from typing import Any

from diffusers import FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextModel

from grpokit_diffusers.tiny.parts import FLUX, WIDTH, clip, clip_tokenizer, shifting, t5, t5_tokenizer, vae


def pipeline(kind: Any = FluxPipeline) -> Any:
    """With random weights."""
    return kind(
        transformer=FluxTransformer2DModel(
            **FLUX,
            joint_attention_dim=WIDTH,
            pooled_projection_dim=WIDTH // 2,
            guidance_embeds=True,
            axes_dims_rope=(4, 4, 8),
        ).eval(),
        scheduler=shifting(),
        vae=vae(),
        text_encoder=clip(CLIPTextModel, WIDTH // 2),
        tokenizer=clip_tokenizer(),
        text_encoder_2=t5(),
        tokenizer_2=t5_tokenizer(),
    )
