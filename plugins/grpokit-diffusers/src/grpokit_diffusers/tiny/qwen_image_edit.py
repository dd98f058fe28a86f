"""A tiny Qwen-Image-Edit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffusers import QwenImageEditPipeline
from transformers import Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor

from grpokit_diffusers.tiny import qwen_image
from grpokit_diffusers.tiny.parts import qwen_tokenizer


def pipeline() -> QwenImageEditPipeline:
    """With random weights."""
    made: QwenImageEditPipeline = qwen_image.pipeline(QwenImageEditPipeline, processor=processor())
    return made


def processor() -> Qwen2VLProcessor:
    """It makes pictures of at most four tokens."""
    pixels: Mapping[str, Any] = {"min_pixels": 28 * 28, "max_pixels": 56 * 56}
    return Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels),
        tokenizer=qwen_tokenizer(),
        video_processor=Qwen2VLVideoProcessor(**pixels),
    )
