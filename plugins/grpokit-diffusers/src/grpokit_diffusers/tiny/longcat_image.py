"""A tiny LongCat-Image."""

from __future__ import annotations

from typing import Any

from diffusers import AutoencoderKL, LongCatImagePipeline, LongCatImageTransformer2DModel

from grpokit_diffusers.tiny.parts import FLUX, VAE, WIDTH, shifting
from grpokit_diffusers.tiny.qwen_image import reader
from grpokit_diffusers.tiny.qwen_image_edit import processor


def pipeline(kind: Any = LongCatImagePipeline) -> Any:
    """With random weights; the pipeline counts on 16 channels."""
    own = processor()
    return kind(
        scheduler=shifting(),
        vae=AutoencoderKL(**{**VAE, "latent_channels": 16}, scaling_factor=1.5, shift_factor=0.06).eval(),
        text_encoder=reader(),
        tokenizer=own.tokenizer,
        text_processor=own,
        transformer=LongCatImageTransformer2DModel(
            **{**FLUX, "in_channels": 64},
            joint_attention_dim=WIDTH,
            pooled_projection_dim=WIDTH,
            axes_dims_rope=[4, 6, 6],
        ).eval(),
    )
