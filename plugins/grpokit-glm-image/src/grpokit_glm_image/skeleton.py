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
from grpokit.hf.sources import local, locate, why_not
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


def skeleton_of(model: Any, *, revision: str | None = None, local_files_only: bool = False) -> Skeleton:
    """The parts of a pipeline from their configurations; no weights are read.

    The released model's sizes ship with this package, for where its files can neither be found nor fetched.

    Raises:
        UsageError: it is no pipeline, or not there.
    """
    if model == "tiny":
        pipeline = tiny_pipeline()
        return Skeleton(
            ar=pipeline.vision_language_encoder.to("meta"),
            transformer=pipeline.transformer.to("meta"),
            vae=pipeline.vae.to("meta"),
            text_encoder=pipeline.text_encoder.to("meta"),
        )
    if not isinstance(model, str):
        raise UsageError(f"model must be a hub id, a folder or 'tiny', got {a_type(model)}.")
    files = locate(model, revision=revision, local_files_only=local_files_only)
    options = {name: files.options[name] for name in ("revision", "local_files_only")}
    options = options if local(model) is None else {}
    try:
        return _built(
            GlmImageConfig.from_pretrained(files.place, subfolder="vision_language_encoder", **options),
            GlmImageTransformer2DModel.load_config(files.place, subfolder="transformer", **options),
            AutoencoderKL.load_config(files.place, subfolder="vae", **options),
            T5Config.from_pretrained(files.place, subfolder="text_encoder", **options),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        if model != RELEASED:
            raise UsageError(why_not(files, error)) from error
    return released()


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
