"""Tiny vision-language models from scratch, with their processors: for tests, without network.

An image of 16 x 16 pixels becomes 4 image tokens in either family. Larger ones become more in Qwen2.5-VL; LLaVA scales
every image to 16 x 16.
"""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tiny_models import (
    CHAT_TEMPLATE,
    EOS,
    IDS,
    IMAGE,
    SHAPE,
    VIDEO,
    VISION,
    VISION_END,
    seeded,
    tiny_tokenizer,
)
from transformers import PreTrainedModel, ProcessorMixin

VISION_FAMILIES = ("qwen2-vl", "qwen2.5-vl", "qwen3-vl", "llava", "llava-next", "gemma3")


def tiny_vision_model(family: str, *, seed: int = 0) -> PreTrainedModel:
    """An image-text-to-text model of a family, in eval mode."""
    return seeded(_MODELS[family], seed)


def tiny_processor(family: str, *, begins: bool = False) -> ProcessorMixin:
    """The processor of a family: its image processor (by Pillow, without torchvision) and the tiny tokenizer.

    Args:
        family: one of `VISION_FAMILIES`.
        begins: whether the tokenizer puts <bos> before a text; not for gemma3.
    """
    tokenizer = tiny_tokenizer(begins=begins, image_token="<image>", video_token="<video>")
    if family.startswith("llava"):
        kind, images = {
            "llava": (transformers.LlavaProcessor, transformers.CLIPImageProcessorPil),
            "llava-next": (transformers.LlavaNextProcessor, transformers.LlavaNextImageProcessorPil),
        }[family]
        tiles = {"image_grid_pinpoints": _TILES} if family == "llava-next" else {}
        return kind(
            images(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}, **tiles),
            tokenizer,
            patch_size=8,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=CHAT_TEMPLATE,
        )
    if family == "gemma3":
        tokenizer = tiny_tokenizer(image_token="<video>", boi_token="<image>", eoi_token="</vision>")
        size = {"height": 16, "width": 16}
        images = transformers.Gemma3ImageProcessorPil(size=size, do_pan_and_scan=False)
        return transformers.Gemma3Processor(images, tokenizer, image_seq_length=4, chat_template=CHAT_TEMPLATE)
    kind = {
        "qwen2-vl": transformers.Qwen2VLProcessor,
        "qwen2.5-vl": transformers.Qwen2_5_VLProcessor,
        "qwen3-vl": transformers.Qwen3VLProcessor,
    }[family]
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 64, "longest_edge": 4096}
    )
    videos = transformers.Qwen3VLVideoProcessor if family == "qwen3-vl" else transformers.Qwen2VLVideoProcessor
    return kind(images, tokenizer, videos(), chat_template=CHAT_TEMPLATE)


def save_tiny_vision_model(folder: Path, family: str, *, seed: int = 0) -> Path:
    """A model folder with its processor; returns the folder."""
    tiny_vision_model(family, seed=seed).save_pretrained(folder)
    tiny_processor(family).save_pretrained(folder)
    return folder


_TILES = [[16, 32], [32, 16], [32, 32]]
_TOKENS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": VISION,
    "vision_end_token_id": VISION_END,
    "eos_token_id": EOS,
}


def _llava(next: bool = False) -> PreTrainedModel:
    kind, model = (
        (transformers.LlavaNextConfig, transformers.LlavaNextForConditionalGeneration)
        if next
        else (transformers.LlavaConfig, transformers.LlavaForConditionalGeneration)
    )
    config = kind(
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=16,
            patch_size=8,
            projection_dim=16,
        ),
        text_config=transformers.LlamaConfig(**SHAPE, **IDS),
        image_token_index=IMAGE,
        image_seq_length=4,
        **({"image_grid_pinpoints": _TILES} if next else {}),
    )
    return model(config).float()


def _gemma() -> PreTrainedModel:
    config = transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**SHAPE, **IDS, query_pre_attn_scalar=4, sliding_window=64),
        vision_config=transformers.SiglipVisionConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=16,
            patch_size=4,
            vision_use_head=False,
        ),
        mm_tokens_per_image=4,
        image_token_index=VIDEO,
        boi_token_index=IMAGE,
        eoi_token_index=VISION_END,
    )
    model = transformers.Gemma3ForConditionalGeneration(config).float()
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)  # it begins as zero
    return model


def _qwen(family: str) -> PreTrainedModel:
    text = {k: v for k, v in SHAPE.items() if k != "head_dim"} | IDS
    text |= {"num_attention_heads": 2, "num_key_value_heads": 1}  # 8 dimensions a head: 4 pairs, on 3 axes
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    size = {"depth": 2, "num_heads": 2, "patch_size": 4, "initializer_range": 0.3}
    wide = {"hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 16}
    kind, vision = {
        "qwen2-vl": ("Qwen2VL", {"embed_dim": 16, "hidden_size": 16, "mlp_ratio": 2}),
        "qwen2.5-vl": ("Qwen2_5_VL", wide | {"window_size": 16, "fullatt_block_indexes": [1]}),
        "qwen3-vl": ("Qwen3VL", wide | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}),
    }[family]
    if family == "qwen3-vl":
        text["head_dim"] = 8
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=size | vision, **_TOKENS)
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config).float()


_MODELS = {
    "qwen2-vl": lambda: _qwen("qwen2-vl"),
    "qwen2.5-vl": lambda: _qwen("qwen2.5-vl"),
    "qwen3-vl": lambda: _qwen("qwen3-vl"),
    "llava": _llava,
    "llava-next": lambda: _llava(next=True),
    "gemma3": _gemma,
}
