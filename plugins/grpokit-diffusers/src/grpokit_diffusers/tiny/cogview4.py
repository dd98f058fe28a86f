"""A tiny CogView4."""

from __future__ import annotations

from typing import Any

from diffusers import CogView4Pipeline, CogView4Transformer2DModel, FlowMatchEulerDiscreteScheduler
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import GlmConfig, GlmModel, PreTrainedTokenizerFast

from grpokit_diffusers.tiny.parts import LETTERS, SMALL, WIDTH, vae


def pipeline() -> CogView4Pipeline:
    """With random weights."""
    transformer = CogView4Transformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        text_embed_dim=WIDTH,
        time_embed_dim=16,
        condition_dim=8,
        rope_axes_dim=(8, 8),
    ).eval()
    scheduler = FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, base_shift=0.25, max_shift=0.75, time_shift_type="linear"
    )
    return CogView4Pipeline(
        transformer=transformer,
        scheduler=scheduler,
        vae=vae(shift=0.0),
        text_encoder=GlmModel(GlmConfig(**SMALL, head_dim=8)).eval(),
        tokenizer=_tokenizer(),
    )


def _tokenizer() -> Any:
    """Letters, and before them the two tokens that GLM begins with."""
    before = ["[gMASK]", "<sop>"]
    texts = [*LETTERS, "<|endoftext|>", *before]
    letters = Tokenizer(models.BPE(vocab={text: token for token, text in enumerate(texts)}, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.post_processor = processors.TemplateProcessing(
        single=f"{' '.join(before)} $A", special_tokens=[(text, texts.index(text)) for text in before]
    )
    names = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "additional_special_tokens": before}
    return PreTrainedTokenizerFast(tokenizer_object=letters, **names)
