"""A tiny LongCat-Image-Edit."""

from __future__ import annotations

from diffusers import LongCatImageEditPipeline

from grpokit_diffusers.tiny import longcat_image


def pipeline() -> LongCatImageEditPipeline:
    """With random weights."""
    made: LongCatImageEditPipeline = longcat_image.pipeline(LongCatImageEditPipeline)
    return made
