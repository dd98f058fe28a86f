"""GLM-Image without its weights: the parts of a pipeline from their configurations, with shapes and no values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from diffusers import AutoencoderKL, GlmImageTransformer2DModel
from transformers import GlmImageConfig, GlmImageForConditionalGeneration, T5Config, T5EncoderModel

from grpokit import UsageError
from grpokit.errors import a_type
from grpokit_glm_image.pipeline import find
from grpokit_glm_image.pipeline_folder import check_configs, check_context, check_fit
from grpokit_glm_image.settings import PipelineSettings
from grpokit_glm_image.tiny import tiny_pipeline

RELEASED = "zai-org/GLM-Image"


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """The parts of a pipeline, with shapes and no values.

    Attributes:
        ar: the autoregressive half.
        transformer: of the diffusion decoder.
        vae: the autoencoder.
        text_encoder: of the glyphs.
        note: where the sizes are from, if not from the model itself.
    """

    ar: Any
    transformer: Any
    vae: Any
    text_encoder: Any
    note: str = ""


def skeleton_of(settings: PipelineSettings) -> Skeleton:
    """The parts of a pipeline from their configurations; no weights are read, and none need be there.

    The released model's sizes ship with this package, for where its files can neither be found nor fetched.

    Raises:
        UsageError: it is no pipeline, it is not there, or it cannot make such pictures.
    """
    model, size, edits = settings.model, settings.resolution, settings.edits
    if not isinstance(model, str):
        raise UsageError(f"model must be a hub id, a folder or 'tiny', got {a_type(model)}.")
    if model == "tiny":
        pipeline = tiny_pipeline()
        parts = pipeline.transformer, pipeline.vae, pipeline.text_encoder
        writer, transformer, vae, text = pipeline.vision_language_encoder.config, *(part.config for part in parts)
        check_context(size, writer, edits=edits)
        return _built(writer, transformer, vae, text)
    try:
        _, folder = find(model, settings)
    except UsageError:
        if model != RELEASED:
            raise
        return released()
    writer, configs = check_configs(folder)
    check_fit(model, writer, configs)
    check_context(size, writer, edits=edits)
    return _built(writer, configs["transformer"], configs["vae"], T5Config(**configs["text_encoder"]))


def released() -> Skeleton:
    """The parts of the released model, by the sizes that ship with this package."""
    sizes = json.loads(resources.files("grpokit_glm_image").joinpath("released.json").read_text(encoding="utf-8"))
    return _built(
        GlmImageConfig(**sizes["vision_language_encoder"]),
        sizes["transformer"],
        sizes["vae"],
        T5Config(**sizes["text_encoder"]),
        note=f"The sizes of {RELEASED} are those that ship with grpokit, since its files are not here.",
    )


def _built(
    ar: GlmImageConfig, transformer: Mapping[str, Any], vae: Mapping[str, Any], text: T5Config, *, note: str = ""
) -> Skeleton:
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        return Skeleton(
            ar=GlmImageForConditionalGeneration(ar),
            transformer=GlmImageTransformer2DModel.from_config(dict(transformer)),
            vae=AutoencoderKL.from_config(dict(vae)),
            text_encoder=T5EncoderModel(text),
            note=note,
        )
