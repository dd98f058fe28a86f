"""The sizes of some released models, for a plan where their files are neither here nor to be had.

A tiny pipeline has the classes of a model's parts. What is written here is what a released part has in place of its
class's own defaults: for many transformers, nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from diffusers import ModelMixin

from grpokit_diffusers.tiny import tiny_pipeline

Sizes = Mapping[str, Any]
_OF_FEW_TOKENS = ("base_image_seq_len", "max_image_seq_len")  # what a tiny pipeline's scheduler shifts by

_VAE: Sizes = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "latent_channels": 16,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
_CLIP_L: Sizes = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "projection_dim": 768,
}
_CLIP_BIG_G: Sizes = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "projection_dim": 1280,
}
_T5_XXL: Sizes = {
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
}
_QWEN3_4B: Sizes = {
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
_QWEN25_VL_7B: Sizes = {
    "text_config": {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
    "vision_config": {"hidden_size": 1280, "out_hidden_size": 3584},
}
_QWEN3_VL_4B: Sizes = {
    "text_config": _QWEN3_4B,
    "vision_config": {
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_heads": 16,
        "out_hidden_size": 2560,
        "deepstack_visual_indexes": [5, 11, 17],
    },
}
_QWEN3_VL_8B: Sizes = {
    "text_config": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "vision_config": {"out_hidden_size": 4096},
}
_MINISTRAL_3B: Sizes = {
    "text_config": {
        "model_type": "ministral3",
        "vocab_size": 131072,
        "hidden_size": 3072,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}
_FLUX: Mapping[str, Sizes] = {
    "transformer": {"guidance_embeds": True},
    "vae": _VAE,
    "text_encoder": _CLIP_L,
    "text_encoder_2": _T5_XXL,
}
_QWEN_IMAGE: Mapping[str, Sizes] = {"transformer": {}, "vae": {}, "text_encoder": _QWEN25_VL_7B}

_LONGCAT: Mapping[str, Sizes] = {
    "transformer": {"num_layers": 10, "num_single_layers": 20},
    "vae": _VAE,
    "text_encoder": _QWEN25_VL_7B,
}

RELEASED: Mapping[str, tuple[str, Mapping[str, Sizes]]] = {
    "Alpha-VLLM/Lumina-Image-2.0": (
        "tiny-lumina2",
        {"transformer": {"cap_feat_dim": 2304}, "vae": _VAE, "text_encoder": {}},
    ),
    "Efficient-Large-Model/Sana_600M_512px_diffusers": (
        "tiny-sana",
        {
            "transformer": {
                "num_layers": 28,
                "num_attention_heads": 36,
                "num_cross_attention_heads": 16,
                "cross_attention_head_dim": 72,
                "cross_attention_dim": 1152,
            },
            "vae": {
                "encoder_block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
                "decoder_block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
                "upsample_block_type": "interpolate",
                "downsample_block_type": "Conv",
            },
            "text_encoder": {},
        },
    ),
    "Qwen/Qwen-Image": ("tiny-qwen-image", _QWEN_IMAGE),
    "Qwen/Qwen-Image-2.1": ("tiny-qwen-image-21", {"transformer": {}, "vae": {}, "text_encoder": _QWEN3_VL_8B}),
    "Qwen/Qwen-Image-Edit": ("tiny-qwen-image-edit", _QWEN_IMAGE),
    "Qwen/Qwen-Image-Edit-2511": (
        "tiny-qwen-image-edit-plus",
        {**_QWEN_IMAGE, "transformer": {"zero_cond_t": True}},
    ),
    "Tongyi-MAI/Z-Image": ("tiny-z-image", {"transformer": {}, "vae": _VAE, "text_encoder": _QWEN3_4B}),
    "THUDM/CogView4-6B": (
        "tiny-cogview4",
        {
            "transformer": {"num_layers": 28, "attention_head_dim": 128, "num_attention_heads": 32},
            "vae": {**_VAE, "block_out_channels": (128, 512, 1024, 1024), "layers_per_block": 3},
            "text_encoder": {},
        },
    ),
    "baidu/ERNIE-Image": (
        "tiny-ernie-image",
        {
            "transformer": {
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "num_layers": 36,
                "ffn_hidden_size": 12288,
                "text_in_dim": 3072,
            },
            "vae": {},
            "text_encoder": _MINISTRAL_3B,
        },
    ),
    "black-forest-labs/FLUX.1-Kontext-dev": ("tiny-flux-kontext", _FLUX),
    "black-forest-labs/FLUX.1-dev": ("tiny-flux", _FLUX),
    "black-forest-labs/FLUX.2-dev": (
        "tiny-flux2",
        {"transformer": {}, "vae": {}, "text_encoder": {"tie_word_embeddings": False}},
    ),
    "black-forest-labs/FLUX.2-klein-base-4B": (
        "tiny-flux2-klein",
        {
            "transformer": {
                "num_layers": 5,
                "num_single_layers": 20,
                "num_attention_heads": 24,
                "joint_attention_dim": 7680,
                "guidance_embeds": False,
            },
            "vae": {},
            "text_encoder": _QWEN3_4B,
        },
    ),
    "krea/Krea-2-Raw": ("tiny-krea2", {"transformer": {}, "vae": {}, "text_encoder": _QWEN3_VL_4B}),
    "lodestones/Chroma1-HD": ("tiny-chroma", {"transformer": {}, "vae": _VAE, "text_encoder": _T5_XXL}),
    "meituan-longcat/LongCat-Image": ("tiny-longcat-image", _LONGCAT),
    "meituan-longcat/LongCat-Image-Edit": ("tiny-longcat-image-edit", _LONGCAT),
    "stabilityai/stable-diffusion-3.5-medium": (
        "tiny-sd3",
        {
            "transformer": {
                "num_layers": 24,
                "num_attention_heads": 24,
                "caption_projection_dim": 1536,
                "dual_attention_layers": tuple(range(13)),
                "qk_norm": "rms_norm",
                "pos_embed_max_size": 384,
            },
            "vae": _VAE,
            "text_encoder": _CLIP_L,
            "text_encoder_2": _CLIP_BIG_G,
            "text_encoder_3": _T5_XXL,
        },
    ),
}
"""A hub id -> the tiny pipeline with parts of the same classes, and the sizes of those parts that have weights."""


def released_pipeline(model: str) -> Any:
    """A released model's pipeline, whose parts have shapes and no values.

    Args:
        model: one of `RELEASED`.
    """
    name, sizes = RELEASED[model]
    tiny = tiny_pipeline(name)
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        parts = {part: _sized(getattr(tiny, part), own) for part, own in sizes.items()}
    schedule = {key: value for key, value in tiny.scheduler.config.items() if key not in _OF_FEW_TOKENS}
    parts["scheduler"] = type(tiny.scheduler).from_config(schedule)
    known = inspect.signature(type(tiny).__init__).parameters
    settings = {key: value for key, value in tiny.config.items() if key in known}
    return type(tiny)(**{**settings, **tiny.components, **parts})


def _sized(part: Any, sizes: Sizes) -> Any:
    """A part of the same class, with sizes of its own."""
    kind: Any = type(part)
    return kind.from_config(dict(sizes)) if isinstance(part, ModelMixin) else kind(kind.config_class(**sizes))
