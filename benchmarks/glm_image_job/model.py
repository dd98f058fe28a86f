"""A GLM-Image with random weights: of the released size, built on the GPU in bfloat16, or the tiny one.

Times and memory depend on shapes alone, so random weights show them. Pictures show noise. The vision tower is left out,
as it is where a pipeline is loaded for text to image.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from typing import Any

import torch
from diffusers import AutoencoderKL, GlmImagePipeline, GlmImageTransformer2DModel
from torch import nn
from transformers import ByT5Tokenizer, GlmImageConfig, GlmImageForConditionalGeneration, T5Config, T5EncoderModel

from glm_image_job.job import Job
from grpokit_glm_image.tiny import IMAGE, make_processor, make_scheduler, make_tokenizer, tiny_pipeline

_MODELS = ("vision_language_encoder", "transformer", "vae", "text_encoder")
_ROOM = 2**30  # bytes that may be in use on the GPU before a model is built


def build(job: Job) -> GlmImagePipeline:
    """The pipeline of a job, in bfloat16 on its device.

    Raises:
        RuntimeError: an earlier model is still in memory; two of them do not fit.
    """
    gc.collect()
    if not job.tiny:
        torch.cuda.empty_cache()
        used = torch.cuda.memory_allocated()
        if used > _ROOM:
            raise RuntimeError(f"{used / 2**30:.1f} GiB are in use before a model is built. Give them back first.")
        return released_pipeline(torch.device("cuda"))
    pipeline = tiny_pipeline()
    _drop_vision(pipeline.vision_language_encoder)
    for part in _MODELS:
        nn.Module.to(getattr(pipeline, part), torch.bfloat16)
    return pipeline


def released_pipeline(device: torch.device) -> GlmImagePipeline:
    """The released architecture with random weights, in bfloat16.

    Args:
        device: where the weights are drawn; "meta" for shapes alone.
    """
    return random_pipeline(released_sizes(), device, torch.bfloat16)


def released_sizes() -> dict[str, Any]:
    """Part of the pipeline -> its configuration."""
    text = resources.files("grpokit_glm_image").joinpath("released.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def random_pipeline(sizes: Mapping[str, Any], device: torch.device, dtype: torch.dtype) -> GlmImagePipeline:
    """A pipeline of some size with random weights.

    Its prompts are read byte by byte. Visual ids and the begin of text ids are the released ones; special ids follow
    the bytes. The global random state stays as it is.

    Args:
        sizes: as `released_sizes` gives them.
        device: where the weights are drawn; "meta" for shapes alone.
        dtype: of the weights.
    """
    writer = sizes["vision_language_encoder"]
    codes = writer["vq_config"]["num_embeddings"]
    tokenizer = make_tokenizer(codes, spare=writer["text_config"]["vision_vocab_size"] - codes)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = GlmImageConfig(
        **{**writer, "text_config": {**writer["text_config"], **ids}},
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        image_start_token_id=tokenizer.bos_token_id,
        image_end_token_id=tokenizer.eos_token_id,
    )
    channels = sizes["vae"]["latent_channels"]
    scale = {"latents_mean": [0.0] * channels, "latents_std": [1.0] * channels}  # which the pipeline reads
    with _drawn_on(device, dtype):
        ar = GlmImageForConditionalGeneration(config).eval()
        _drop_vision(ar)
        models = {
            "vision_language_encoder": ar,
            "transformer": GlmImageTransformer2DModel.from_config(sizes["transformer"]).eval(),
            "vae": AutoencoderKL.from_config({**sizes["vae"], **scale}).eval(),
            "text_encoder": T5EncoderModel(T5Config(**sizes["text_encoder"])).eval(),
        }
    for part in models.values():
        part.requires_grad_(False)
    ar.generation_config.update(
        do_sample=True,
        temperature=0.9,
        top_p=0.75,
        top_k=0,
        bos_token_id=tokenizer.bos_token_id,
        **ids,
        suppress_tokens=list(range(codes, config.text_config.vision_vocab_size)),  # random weights would end early
    )
    return GlmImagePipeline(
        tokenizer=ByT5Tokenizer(),
        processor=make_processor(tokenizer, shortest_side=512),
        scheduler=make_scheduler(),
        **models,
    )


def bytes_per_token(ar: Any) -> int:
    """The bytes of weights that decoding reads for each token: of all layers and the head; of embeddings only rows."""
    decoder = ar.model.language_model
    read = [*decoder.layers.parameters(), *decoder.norm.parameters(), *ar.lm_head.parameters()]
    return sum(p.numel() * p.element_size() for p in read)


def _drop_vision(ar: Any) -> None:
    ar.model.visual = None
    ar.model.vqmodel = None


@contextmanager
def _drawn_on(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Inside, modules are built on a device in a type, from a seed."""
    before = torch.get_default_dtype()
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), device:
        torch.manual_seed(0)
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
