"""What a step of diffusers-flow needs, for `grpokit plan`: counted on the pipeline's parts without their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from grpokit import UsageError
from grpokit_diffusers.family import PIXELS_PER_PASS, PipelineFamily
from grpokit_diffusers.known import family_of
from grpokit_diffusers.pipeline import prepare
from grpokit_diffusers.released import RELEASED, released_pipeline
from grpokit_diffusers.settings import DiffusersSettings
from grpokit_hf.diffusion.flow_policy import FlowPolicy
from grpokit_hf.models import dtypes
from grpokit_hf.plan.counting import stored
from grpokit_hf.plan.diffusion import ASSUMED, FlowWork, autoencoder, remedies
from grpokit_plan import Job, Needs, Part

_PROMPT = 100  # tokens, if nobody says how many


def plan(parameters: Mapping[str, Any], job: Job) -> Needs:
    """The needs of a step of `DiffusersFlow`.

    Args:
        parameters: all of the policy's.
        job: the step.

    Raises:
        UsageError: the model cannot be found, or a setting cannot be used.
    """
    settings = DiffusersSettings(**parameters)
    quantization, full = settings.quantization, settings.trains_base
    family, whence = _skeleton(replace(settings, quantization=None, device=None))
    dtype = dtypes.chosen(settings.dtype, torch.bfloat16, trains_base=False, device="cuda")
    number = 4 if full and settings.dtype == "auto" else dtype.itemsize
    weights = stored(family.transformer, width=number, quantization=quantization)
    policy = FlowPolicy(family, settings)
    guidance = family.guidance if settings.guidance is None else settings.guidance
    brings = family.needs_source or (family.sources > 0 and job.pictures)
    picture = family.tokens(policy.size) * (2 if brings else 1)
    text = family.text_tokens or job.prompt_tokens or _PROMPT
    seen = family.picture_tokens(policy.size) if brings else 0
    painting = FlowWork(
        transformer=family.transformer,
        adapter=0 if full else sum(p.numel() for p in policy.model.parameters() if p.requires_grad),
        stored=weights,
        settings=settings,
        job=job,
        picture=picture,
        text=text + seen,
        calls=2 if family.negative is not None and guidance > family.guidance else 1,
        number=number,
    )
    parts = family.pipeline.components
    encoders = [part for name, part in parts.items() if name.startswith("text_encoder") and isinstance(part, nn.Module)]
    vae = parts["vae"]
    told = f"A text has {text:,} tokens" + ("." if family.text_tokens else " (--prompt-tokens).")
    source = ["Each prompt brings a picture, with as many tokens as the result."] if brings else []
    if seen:
        source.append(f"The picture has {seen:,} more tokens in the text.")
    return Needs(
        parts=(
            *painting.parts(),
            Part(
                name="text encoders",
                bytes=sum(stored(part, width=dtype.itemsize, quantization=quantization) for part in encoders),
            ),
            Part(name="autoencoder", bytes=dtype.itemsize * sum(p.numel() for p in vae.parameters())),
            autoencoder(
                _second_width(vae.config),
                number=dtype.itemsize,
                size=policy.size,
                pictures=job.group_size,
                most=PIXELS_PER_PASS,
            ),
        ),
        works=tuple(painting.works()),
        remedies=tuple(remedies(settings, job)),
        assumptions=(*whence, told, *source, *ASSUMED, "Texts are encoded once and kept; that time is not counted."),
    )


def _skeleton(settings: DiffusersSettings) -> tuple[PipelineFamily, Sequence[str]]:
    """A family without weights, and where its sizes are from if not from the model's own files."""
    model = settings.model
    try:
        family = prepare(settings).skeleton()
    except UsageError:
        if not isinstance(model, str) or model not in RELEASED:
            raise
        pipeline = released_pipeline(model)
        names = type(pipeline).__name__, type(pipeline.scheduler).__name__
        kind = family_of(*names, model=model, family=settings.family)
        return kind(pipeline), [f"The sizes of {model} are those that ship with grpokit, since its files are not here."]
    if family is None:
        raise UsageError(f"The sizes of '{model}' cannot be read from its configuration.")
    return family, []


def _second_width(config: Any) -> int:
    """Channels of an autoencoder's second level, counted from the picture."""
    if "block_out_channels" in config:
        return int(config.block_out_channels[1])
    if "decoder_block_out_channels" in config:
        return int(config.decoder_block_out_channels[1])
    return int((config.get("decoder_base_dim") or config.base_dim) * config.dim_mult[1])
