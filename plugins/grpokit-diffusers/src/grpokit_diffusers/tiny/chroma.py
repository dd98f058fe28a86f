"""A tiny Chroma."""

from __future__ import annotations

from diffusers import ChromaPipeline, ChromaTransformer2DModel

from grpokit_diffusers.tiny.parts import FLUX, WIDTH, shifting, t5, t5_tokenizer, vae


def pipeline() -> ChromaPipeline:
    """With random weights."""
    return ChromaPipeline(
        transformer=ChromaTransformer2DModel(
            **FLUX,
            joint_attention_dim=WIDTH,
            axes_dims_rope=(4, 4, 8),
            approximator_num_channels=8,
            approximator_hidden_dim=16,
            approximator_layers=1,
        ).eval(),
        scheduler=shifting(),
        vae=vae(),
        text_encoder=t5(),
        tokenizer=t5_tokenizer(),
    )
