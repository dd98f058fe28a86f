"""A tiny Qwen-Image-Edit 2511."""

from __future__ import annotations

from diffusers import QwenImageEditPlusPipeline

from grpokit_diffusers.tiny import qwen_image
from grpokit_diffusers.tiny.qwen_image_edit import processor


def pipeline() -> QwenImageEditPlusPipeline:
    """Its sources are at time 0."""
    made: QwenImageEditPlusPipeline = qwen_image.pipeline(
        QwenImageEditPlusPipeline, zero_cond_t=True, processor=processor()
    )
    return made
