"""What several tiny pipelines are made of: autoencoders, text encoders, tokenizers and a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffusers import AutoencoderKL, AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler
from tokenizers import pre_tokenizers
from transformers import (
    CLIPTextConfig,
    CLIPTokenizer,
    GemmaTokenizer,
    Qwen2Tokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())  # a letter for each byte, so any text has tokens
WIDTH = 32
QWEN = ["<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]  # behind the letters
GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]
SMALL: Mapping[str, Any] = {
    "vocab_size": len(LETTERS) + len(QWEN),
    "hidden_size": WIDTH,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": len(LETTERS),
    "eos_token_id": len(LETTERS),
    "pad_token_id": len(LETTERS),
}
MROPE: Mapping[str, Any] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
}
EYES = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": WIDTH}
FLUX = {
    "in_channels": 16,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
}
VAE: Mapping[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "block_out_channels": (8, 8),
    "layers_per_block": 1,
    "norm_num_groups": 1,
    "latent_channels": 4,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "mid_block_add_attention": False,
}


def shifting(**options: Any) -> FlowMatchEulerDiscreteScheduler:
    """A scheduler whose noise levels follow from the number of tokens."""
    scheduler: FlowMatchEulerDiscreteScheduler = FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=1.15,
        base_image_seq_len=16,
        max_image_seq_len=64,
        **options,
    )
    return scheduler


def vae(levels: int = 2, *, shift: float = 0.06) -> AutoencoderKL:
    """One of four channels, as of SD3 and FLUX.1; each level but the first halves the sides."""
    blocks = {
        "down_block_types": ("DownEncoderBlock2D",) * levels,
        "up_block_types": ("UpDecoderBlock2D",) * levels,
        "block_out_channels": (8,) * levels,
    }
    model: AutoencoderKL = AutoencoderKL(**{**VAE, **blocks}, scaling_factor=1.5, shift_factor=shift).eval()
    return model


def qwen_vae() -> AutoencoderKLQwenImage:
    """One of four channels, for films, as of Qwen-Image."""
    model: AutoencoderKLQwenImage = AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.2, -0.1, 0.1, -0.2],
        latents_std=[1.2, 0.8, 1.1, 0.9],
    ).eval()
    return model


def clip(kind: Any, width: int) -> Any:
    """A text encoder of a class of CLIP's, with so wide a hidden state."""
    config = CLIPTextConfig(
        vocab_size=2 * len(LETTERS) + 2,
        hidden_size=width,
        projection_dim=WIDTH,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=2 * len(LETTERS),
        eos_token_id=2 * len(LETTERS) + 1,
        pad_token_id=2 * len(LETTERS) + 1,
    )
    return kind(config).eval()


def clip_tokenizer() -> CLIPTokenizer:
    """Letters, and the same at the end of a word."""
    texts = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={text: token for token, text in enumerate(texts)}, merges=[], model_max_length=77)


def t5() -> T5EncoderModel:
    """A text encoder."""
    config = T5Config(
        vocab_size=512, d_model=WIDTH, d_kv=8, d_ff=37, num_layers=2, num_heads=2, feed_forward_proj="gated-gelu"
    )
    encoder: T5EncoderModel = T5EncoderModel(config).eval()
    return encoder


def t5_tokenizer() -> T5Tokenizer:
    """Letters."""
    pieces = ["<pad>", "</s>", "<unk>", "▁", *LETTERS]
    return T5Tokenizer(vocab=[(piece, -float(place)) for place, piece in enumerate(pieces)], model_max_length=512)


def qwen_tokenizer() -> Any:  # some pipelines say AutoTokenizer, which is of no tokenizer
    """Letters and Qwen's own tokens, with a template for a chat."""
    vocab = {text: token for token, text in enumerate([*LETTERS, *QWEN])}
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=[], model_max_length=2048, additional_special_tokens=QWEN[1:])
    tokenizer.chat_template = (
        "{%- for message in messages -%}{{ message['role'] }}: {{ message['content'] }}\n{%- endfor -%}assistant: "
    )
    return tokenizer


def gemma_tokenizer() -> GemmaTokenizer:
    """Bytes behind Gemma's own tokens, of which a text begins with one."""
    return GemmaTokenizer(vocab={text: token for token, text in enumerate(GEMMA)}, add_bos_token=True)


def mark(text: str) -> int:
    """The id of one of Qwen's own tokens."""
    return len(LETTERS) + QWEN.index(text)
