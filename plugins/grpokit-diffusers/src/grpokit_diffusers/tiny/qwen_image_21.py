"""A tiny Qwen-Image 2.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffusers import AutoencoderKLQwenImage21, QwenImage21Pipeline, QwenImage21Transformer2DModel
from transformers import (
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from grpokit_diffusers.tiny.parts import EYES, MROPE, SMALL, WIDTH, mark, qwen_tokenizer, shifting


def pipeline() -> QwenImage21Pipeline:
    """With random weights."""
    transformer = QwenImage21Transformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        context_in_dim=WIDTH,
        axes_dims_rope=(8, 4, 4),
    ).eval()
    reader = Qwen3VLConfig(
        text_config={**SMALL, **MROPE, "head_dim": 8},
        vision_config={**EYES, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        vision_start_token_id=mark("<|vision_start|>"),
        vision_end_token_id=mark("<|vision_end|>"),
        image_token_id=mark("<|image_pad|>"),
        video_token_id=mark("<|video_pad|>"),
    )
    vae = AutoencoderKLQwenImage21(
        base_dim=4,
        decoder_base_dim=4,
        z_dim=4,
        dim_mult=[1, 1, 1, 1, 1],
        num_res_blocks=1,
        latents_mean=[0.2, -0.1, 0.1, -0.2],
        latents_std=[1.2, 0.8, 1.1, 0.9],
    )
    return QwenImage21Pipeline(
        transformer=transformer,
        scheduler=shifting(shift_terminal=0.02),
        vae=vae.eval(),
        text_encoder=Qwen3VLForConditionalGeneration(reader).eval(),
        processor=_processor(),
    )


def _processor() -> Qwen3VLProcessor:
    """A token of a picture is one of 32 x 32 pixels, as the autoencoder's are of 16 x 16."""
    pixels: Mapping[str, Any] = {"patch_size": 16, "size": {"shortest_edge": 32**2, "longest_edge": 2048**2}}
    template = (
        "{%- for message in messages -%}<|im_start|>{{ message['role'] }}\n"
        "{%- for part in message['content'] -%}{{ part['text'] }}{%- endfor -%}<|im_end|>\n{%- endfor -%}"
    )
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels),
        tokenizer=qwen_tokenizer(),
        video_processor=Qwen3VLVideoProcessor(**pixels),
        chat_template=template,
    )
