"""A tiny Krea 2."""

from __future__ import annotations

from diffusers import Krea2Pipeline, Krea2Transformer2DModel
from transformers import Qwen3VLConfig, Qwen3VLModel

from grpokit_diffusers.tiny.parts import EYES, MROPE, SMALL, WIDTH, qwen_tokenizer, qwen_vae, shifting


def pipeline() -> Krea2Pipeline:
    """With random weights."""
    transformer = Krea2Transformer2DModel(
        in_channels=16,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        timestep_embed_dim=16,
        text_hidden_dim=WIDTH,
        num_text_layers=2,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=32,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(4, 4, 8),
    ).eval()
    reader = Qwen3VLConfig(
        text_config={**SMALL, **MROPE, "head_dim": 8},
        vision_config={**EYES, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    )
    return Krea2Pipeline(
        transformer=transformer,
        scheduler=shifting(),
        vae=qwen_vae(),
        text_encoder=Qwen3VLModel(reader).eval(),
        tokenizer=qwen_tokenizer(),
        text_encoder_select_layers=(1, 2),
    )
