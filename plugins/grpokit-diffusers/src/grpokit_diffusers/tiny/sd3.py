"""A tiny Stable Diffusion 3."""

from __future__ import annotations

from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
from transformers import CLIPTextModelWithProjection

from grpokit_diffusers.tiny.parts import WIDTH, clip, clip_tokenizer, t5, t5_tokenizer, vae


def pipeline() -> StableDiffusion3Pipeline:
    """With random weights."""
    return StableDiffusion3Pipeline(
        transformer=SD3Transformer2DModel(
            sample_size=32,
            patch_size=2,
            in_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDTH,
            caption_projection_dim=WIDTH,
            pooled_projection_dim=2 * WIDTH,
            out_channels=4,
            pos_embed_max_size=16,
        ).eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae(),
        text_encoder=clip(CLIPTextModelWithProjection, WIDTH // 2),
        tokenizer=clip_tokenizer(),
        text_encoder_2=clip(CLIPTextModelWithProjection, WIDTH // 2),
        tokenizer_2=clip_tokenizer(),
        text_encoder_3=t5(),
        tokenizer_3=t5_tokenizer(),
    )
