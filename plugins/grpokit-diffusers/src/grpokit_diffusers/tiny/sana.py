"""A tiny Sana."""

from __future__ import annotations

from diffusers import AutoencoderDC, DPMSolverMultistepScheduler, SanaPipeline, SanaTransformer2DModel
from transformers import Gemma2Config, Gemma2Model

from grpokit_diffusers.tiny.parts import GEMMA, WIDTH, gemma_tokenizer


def pipeline() -> SanaPipeline:
    """With random weights, and a scheduler as the released models have it."""
    reader = Gemma2Config(
        vocab_size=len(GEMMA),
        hidden_size=WIDTH,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    return SanaPipeline(
        tokenizer=gemma_tokenizer(),
        text_encoder=Gemma2Model(reader).eval(),
        vae=_vae(),
        transformer=SanaTransformer2DModel(
            in_channels=4,
            out_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            num_cross_attention_heads=2,
            cross_attention_head_dim=16,
            cross_attention_dim=WIDTH,
            caption_channels=WIDTH,
        ).eval(),
        scheduler=DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
    )


def _vae() -> AutoencoderDC:
    """One that makes sides 4 times shorter; the released one makes them 32 times shorter."""
    model: AutoencoderDC = AutoencoderDC(
        latent_channels=4,
        attention_head_dim=4,
        encoder_block_types=("ResBlock", "ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        encoder_layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        encoder_qkv_multiscales=((), (), (5,)),
        decoder_qkv_multiscales=((), (), (5,)),
        upsample_block_type="interpolate",
        downsample_block_type="Conv",
        scaling_factor=0.41407,
    ).eval()
    return model
