"""What a step of glm-image-dit needs, for `grpokit plan`: counted on the pipeline's parts without their weights.

Its moment "rollout" is that in which tokens are written, and "decode" that in which they are painted, as in the plan of
glm-image-ar. What the autoregressive half writes is kept, so its time is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grpokit_glm_image.painter import PIXELS_PER_PASS, Painter
from grpokit_glm_image.pipeline import types
from grpokit_glm_image.plan import OFFLOAD, count, prompt_tokens
from grpokit_glm_image.settings import PaintingSettings
from grpokit_glm_image.skeleton import Skeleton, skeleton_of
from grpokit_hf.diffusion.adapters import adapted
from grpokit_hf.plan.counting import sizes_of, stored
from grpokit_hf.plan.diffusion import ASSUMED, FlowWork, autoencoder, remedies
from grpokit_hf.plan.transformer import TokenWork
from grpokit_plan import MOMENTS, Job, Moment, Needs, Part

_FINE = 16  # pixels of a picture's side, for one token
_PAINTS: tuple[Moment, ...] = ("decode", "score", "train")


def plan(parameters: Mapping[str, Any], job: Job) -> Needs:
    """The needs of a step of `GlmImageDiT`.

    Args:
        parameters: all of the policy's.
        job: the step.

    Raises:
        UsageError: the model cannot be found, or a setting cannot be used.
    """
    settings = PaintingSettings(**parameters)
    skeleton, idle, edits = skeleton_of(settings), settings.offload == "idle", settings.edits
    writes_in, paints_in = (each.itemsize for each in types(settings.dtype, trains_base=False, device="cuda"))
    paints_in = 4 if settings.trains_base else paints_in
    weights = stored(skeleton.transformer, width=paints_in, quantization=settings.quantization)
    tokens = math.prod(settings.resolution) // _FINE**2
    painting = FlowWork(
        transformer=skeleton.transformer,
        adapter=_adapter(skeleton.transformer, settings),
        stored=weights,
        settings=settings,
        job=job,
        picture=tokens,
        sources=tokens if edits else 0,
        calls=2 if settings.guidance > 1 else 1,
        number=paints_in,
    )
    return Needs(
        parts=(
            *_painted(painting, skeleton.vae, settings.resolution, idle=idle),
            *_written(skeleton, settings, job, width=writes_in, idle=idle),
            Part(
                name="autoencoder",
                bytes=paints_in * (count(skeleton.vae) + count(skeleton.text_encoder)),
                moments=_PAINTS if idle else MOMENTS,
            ),
        ),
        works=tuple(replace(work, phase=work.phase.replace("rollout", "decode")) for work in painting.works()),
        remedies=(*([] if idle else [OFFLOAD]), *remedies(settings, job)),
        assumptions=(
            *([skeleton.note] if skeleton.note else []),
            "What the autoregressive half writes is kept from step to step; its time is not counted.",
            *(["A prompt has one picture to edit, of the size of the result."] if edits else []),
            *ASSUMED,
        ),
    )


def _adapter(transformer: Any, settings: PaintingSettings) -> int:
    """The weights of the adapter that is put around the transformer; 0 where there is none."""
    if settings.trains_base:
        return 0
    learner = adapted(transformer, settings, usual=Painter.lora_targets)
    return sum(p.numel() for p in learner.parameters() if p.requires_grad)


def _painted(painting: FlowWork, vae: Any, size: tuple[int, int], *, idle: bool) -> list[Part]:
    """The memory of the diffusion transformer; `idle`: frozen weights wait on the CPU while tokens are written."""
    job, moments = painting.job, _PAINTS if idle and painting.adapter else MOMENTS
    unfolding = autoencoder(
        vae.config.block_out_channels[1],
        number=painting.number,
        size=size,
        pictures=job.group_size,
        most=PIXELS_PER_PASS,
    )
    weights, *others = painting.parts()
    drawing = [part for part in others if part.moments == ("rollout",)]
    return [
        replace(weights, moments=moments),
        *(part for part in others if part not in drawing),
        max(unfolding, *(replace(part, moments=("decode",)) for part in drawing), key=lambda part: part.bytes),
    ]


def _written(skeleton: Skeleton, settings: PaintingSettings, job: Job, *, width: int, idle: bool) -> list[Part]:
    """The memory of the autoregressive half, which writes once for a group; `idle`: it is there only then."""
    ar, target = skeleton.ar, settings.target
    if not settings.edits:
        del ar.model.visual, ar.model.vqmodel
    writing = TokenWork(
        sizes=sizes_of(
            ar,
            decoder=ar.model.language_model,
            head=ar.lm_head,
            width=width,
            quantization=settings.quantization,
        ),
        job=replace(job, group_size=1, rollout_rows=job.rollout_prompts),
        prompt=prompt_tokens(job, target),
        new=target.count,
    )
    return [
        Part(name="writing half", bytes=writing.sizes.stored, moments=("rollout",) if idle else MOMENTS),
        Part(name="weights for drawing", bytes=writing.drawing_weights(), moments=("rollout",)),
        Part(name="cache", bytes=writing.cache(), moments=("rollout",)),
    ]
