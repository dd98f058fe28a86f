"""A tiny FLUX.1 Kontext."""

from __future__ import annotations

from diffusers import FluxKontextPipeline

from grpokit_diffusers.tiny import flux


def pipeline() -> FluxKontextPipeline:
    """With random weights."""
    made: FluxKontextPipeline = flux.pipeline(FluxKontextPipeline)
    return made
