"""The models: the same random weights in every contender's process."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKL, SD3Transformer2DModel
from glm_image_job.model import random_pipeline, released_sizes

from grpokit_diffusers import tiny as tiny_flows
from grpokit_glm_image.tiny import tiny_pipeline
from images_job.job import Job

WRITER = {
    "vocab_size": 16_896,  # bytes and special tokens, behind the visual ones
    "hidden_size": 768,
    "intermediate_size": 2568,
    "num_hidden_layers": 10,
    "num_attention_heads": 12,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [4, 6, 6],
    },
    "initializer_range": 0.05,  # peaked enough for wrong positions to show
}
"""What differs from the released autoregressive half: 86 million weights in the layers and the head, which decide
times, and 13 million in the embeddings."""

SMALL = {
    "transformer": {
        "num_layers": 2,
        "attention_head_dim": 32,
        "num_attention_heads": 2,
        "time_embed_dim": 32,
        "condition_dim": 8,
        "text_embed_dim": 64,
    },
    "vae": {"block_out_channels": [8] * 4, "layers_per_block": 1, "norm_num_groups": 8},
    "text_encoder": {"d_model": 64, "d_ff": 128, "num_layers": 1},
}
"""A decoder that takes no time, so that times are those of the autoregressive half."""


def glm_image(job: Job) -> Any:
    """A GLM-Image in fp32 on the CPU, without its vision tower."""
    if job.tiny:
        pipeline = tiny_pipeline()
        pipeline.vision_language_encoder.model.visual = None
        pipeline.vision_language_encoder.model.vqmodel = None
        return pipeline
    sizes = released_sizes()
    writer = sizes["vision_language_encoder"]
    writer["text_config"] |= WRITER
    writer["vision_config"] |= {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48}
    writer["vq_config"] |= {"embed_dim": 16, "latent_channels": 32}
    for part, small in SMALL.items():
        sizes[part] |= small
    return random_pipeline(sizes, torch.device("cpu"), torch.float32)


def sd3(job: Job) -> Any:
    """A Stable Diffusion 3 in fp32 on the CPU: 9 million weights in the transformer, and small text encoders."""
    pipeline = tiny_flows.tiny_pipeline("tiny-sd3")
    if job.tiny:
        return pipeline
    own = pipeline.transformer.config
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        transformer = SD3Transformer2DModel(
            sample_size=32,
            patch_size=2,
            in_channels=16,
            out_channels=16,
            num_layers=4,
            attention_head_dim=64,
            num_attention_heads=4,
            joint_attention_dim=own.joint_attention_dim,
            caption_projection_dim=256,
            pooled_projection_dim=own.pooled_projection_dim,
            pos_embed_max_size=16,
        )
        vae = AutoencoderKL(  # 8 x 8 pixels a latent, as in the released model
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(8,) * 4,
            layers_per_block=1,
            norm_num_groups=8,
            latent_channels=16,
            use_quant_conv=False,
            use_post_quant_conv=False,
            mid_block_add_attention=False,
            scaling_factor=1.5,
            shift_factor=0.06,
        )
    parts = pipeline.components | {"transformer": transformer.eval(), "vae": vae.eval()}
    return type(pipeline)(**parts)
