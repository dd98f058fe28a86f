"""A tiny Qwen-Image."""

from __future__ import annotations

from typing import Any

from diffusers import QwenImagePipeline, QwenImageTransformer2DModel
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from grpokit_diffusers.tiny.parts import EYES, MROPE, SMALL, WIDTH, mark, qwen_tokenizer, qwen_vae, shifting


def pipeline(kind: Any = QwenImagePipeline, *, zero_cond_t: bool = False, **more: Any) -> Any:
    """With random weights."""
    return kind(
        transformer=QwenImageTransformer2DModel(
            in_channels=16,
            out_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDTH,
            axes_dims_rope=(8, 4, 4),
            zero_cond_t=zero_cond_t,
        ).eval(),
        scheduler=shifting(shift_terminal=0.02),
        vae=qwen_vae(),
        text_encoder=reader(),
        tokenizer=qwen_tokenizer(),
        **more,
    )


def reader() -> Qwen2_5_VLForConditionalGeneration:
    """A text encoder that sees pictures."""
    config = Qwen2_5_VLConfig(
        text_config={**SMALL, **MROPE},
        vision_config=EYES,
        vision_start_token_id=mark("<|vision_start|>"),
        vision_end_token_id=mark("<|vision_end|>"),
        image_token_id=mark("<|image_pad|>"),
        video_token_id=mark("<|video_pad|>"),
    )
    encoder: Qwen2_5_VLForConditionalGeneration = Qwen2_5_VLForConditionalGeneration(config).eval()
    return encoder
