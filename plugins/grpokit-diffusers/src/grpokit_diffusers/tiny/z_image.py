"""A tiny Z-Image."""

from __future__ import annotations

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from transformers import Qwen3Config, Qwen3Model

from grpokit_diffusers.tiny.parts import SMALL, WIDTH, qwen_tokenizer, vae


def pipeline() -> ZImagePipeline:
    """With random weights."""
    transformer = ZImageTransformer2DModel(
        in_channels=4,
        dim=WIDTH,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=WIDTH,
        axes_dims=[8, 4, 4],
        axes_lens=[1024, 64, 64],
    ).eval()
    with torch.no_grad():
        for padding in (transformer.x_pad_token, transformer.cap_pad_token):
            padding.normal_(std=0.02)  # of which the class says no value
    return ZImagePipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae(),
        text_encoder=Qwen3Model(Qwen3Config(**SMALL, head_dim=8)).eval(),
        tokenizer=qwen_tokenizer(),
    )
