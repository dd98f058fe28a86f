"""A tiny Lumina-Image 2.0."""

from __future__ import annotations

from diffusers import FlowMatchEulerDiscreteScheduler, Lumina2Pipeline, Lumina2Transformer2DModel
from transformers import Gemma2Config, Gemma2Model

from grpokit_diffusers.tiny.parts import GEMMA, SMALL, WIDTH, gemma_tokenizer, vae


def pipeline() -> Lumina2Pipeline:
    """With random weights."""
    transformer = Lumina2Transformer2DModel(
        sample_size=16,
        in_channels=4,
        hidden_size=WIDTH,
        num_layers=2,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=16,
        axes_dim_rope=(8, 4, 4),
        axes_lens=(300, 64, 64),
        cap_feat_dim=WIDTH,
    ).eval()
    own = {"vocab_size": len(GEMMA), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    return Lumina2Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=6.0),
        vae=vae(levels=4),
        text_encoder=Gemma2Model(Gemma2Config(**{**SMALL, **own})).eval(),
        tokenizer=gemma_tokenizer(),
    )
