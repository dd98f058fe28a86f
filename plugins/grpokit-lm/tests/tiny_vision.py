"""Tiny vision-language models from scratch, with their processors: for tests, without network.

An image of 16 x 16 pixels becomes 4 image tokens in either family. Larger ones become more in Qwen2.5-VL; LLaVA scales
every image to 16 x 16.
"""

from __future__ import annotations

from pathlib import Path

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

VISION_FAMILIES = ("qwen2.5-vl", "llava")


def tiny_vision_model(family: str, *, seed: int = 0) -> PreTrainedModel:
    """An image-text-to-text model of a family, in eval mode."""
    make = {"qwen2.5-vl": _qwen, "llava": _llava}[family]
    return seeded(make, seed)


def tiny_processor(family: str) -> ProcessorMixin:
    """The processor of a family: its image processor (by Pillow, without torchvision) and the tiny tokenizer."""
    tokenizer = tiny_tokenizer(image_token="<image>", video_token="<video>")
    if family == "llava":
        images = transformers.CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
        return transformers.LlavaProcessor(
            images,
            tokenizer,
            patch_size=8,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=CHAT_TEMPLATE,
        )
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 64, "longest_edge": 4096}
    )
    return transformers.Qwen2_5_VLProcessor(
        images, tokenizer, transformers.Qwen2VLVideoProcessor(), chat_template=CHAT_TEMPLATE
    )


def save_tiny_vision_model(folder: Path, family: str, *, seed: int = 0) -> Path:
    """A model folder with its processor; returns the folder."""
    tiny_vision_model(family, seed=seed).save_pretrained(folder)
    tiny_processor(family).save_pretrained(folder)
    return folder


def _llava() -> PreTrainedModel:
    config = transformers.LlavaConfig(
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
    )
    return transformers.LlavaForConditionalGeneration(config).float()


def _qwen() -> PreTrainedModel:
    text = {k: v for k, v in SHAPE.items() if k != "head_dim"} | IDS
    text |= {"num_attention_heads": 2, "num_key_value_heads": 1}  # 8 dimensions a head: 4 pairs, on 3 axes
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    config = transformers.Qwen2_5_VLConfig(
        text_config=text,
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_heads": 2,
            "patch_size": 4,
            "window_size": 16,
            "fullatt_block_indexes": [1],
            "out_hidden_size": 16,
            "initializer_range": 0.3,
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=VISION,
        vision_end_token_id=VISION_END,
        eos_token_id=EOS,
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config).float()
