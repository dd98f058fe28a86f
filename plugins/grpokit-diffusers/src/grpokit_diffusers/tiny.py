"""Tiny random pipelines of the real classes, made without any file or network.

They draw nothing recognisable, but all of their parts work. Tests run on them, and so does `model: tiny-sd3`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from tokenizers import pre_tokenizers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

_LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())  # a letter for each byte, so any text has tokens
_WIDTH = 32


def tiny_pipeline(name: str, *, seed: int = 0) -> Any:
    """A pipeline with random weights, on the CPU in float32; the global random state stays as it is.

    Args:
        name: one of `PIPELINES`.
        seed: of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reset a GPU's random state, too
        return PIPELINES[name]()


def _sd3() -> StableDiffusion3Pipeline:
    return StableDiffusion3Pipeline(
        transformer=SD3Transformer2DModel(
            sample_size=32,
            patch_size=2,
            in_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=_WIDTH,
            caption_projection_dim=_WIDTH,
            pooled_projection_dim=2 * _WIDTH,
            out_channels=4,
            pos_embed_max_size=16,
        ).eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=_vae(),
        text_encoder=_clip(CLIPTextModelWithProjection, _WIDTH // 2),
        tokenizer=_clip_tokenizer(),
        text_encoder_2=_clip(CLIPTextModelWithProjection, _WIDTH // 2),
        tokenizer_2=_clip_tokenizer(),
        text_encoder_3=_t5(),
        tokenizer_3=_t5_tokenizer(),
    )


def _vae() -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        layers_per_block=1,
        norm_num_groups=1,
        latent_channels=4,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
        scaling_factor=1.5,
        shift_factor=0.06,
    ).eval()


def _clip(kind: Any, width: int) -> Any:
    config = CLIPTextConfig(
        vocab_size=2 * len(_LETTERS) + 2,
        hidden_size=width,
        projection_dim=_WIDTH,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=2 * len(_LETTERS),
        eos_token_id=2 * len(_LETTERS) + 1,
        pad_token_id=2 * len(_LETTERS) + 1,
    )
    return kind(config).eval()


def _clip_tokenizer() -> CLIPTokenizer:
    texts = [*_LETTERS, *(f"{letter}</w>" for letter in _LETTERS), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={text: token for token, text in enumerate(texts)}, merges=[], model_max_length=77)


def _t5() -> T5EncoderModel:
    config = T5Config(
        vocab_size=512, d_model=_WIDTH, d_kv=8, d_ff=37, num_layers=2, num_heads=2, feed_forward_proj="gated-gelu"
    )
    return T5EncoderModel(config).eval()


def _t5_tokenizer() -> T5Tokenizer:
    pieces = ["<pad>", "</s>", "<unk>", "▁", *_LETTERS]
    return T5Tokenizer(vocab=[(piece, -float(place)) for place, piece in enumerate(pieces)], model_max_length=512)


PIPELINES: Mapping[str, Callable[[], Any]] = {
    "tiny-sd3": _sd3,
}
"""What `model` may name -> how it is made."""
