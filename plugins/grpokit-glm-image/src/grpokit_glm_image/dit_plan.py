"""What a step of glm-image-dit needs, for `grpokit plan`: counted on the pipeline's parts without their weights.

The autoregressive half is there with its weights; what it writes is kept, so its time is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpokit.plan import Job, Needs, Part
from grpokit_glm_image.decoder import check_size
from grpokit_glm_image.painter import PIXELS_PER_PASS, Painter
from grpokit_glm_image.pipeline import check_dtype, types
from grpokit_glm_image.plan import count
from grpokit_glm_image.settings import PAINTING, painting_settings
from grpokit_glm_image.skeleton import skeleton_of
from grpokit_hf.diffusion.adapters import add_adapter
from grpokit_hf.diffusion.trained_lora import continue_lora, find_lora, read_lora
from grpokit_hf.models.quantized import check_setting
from grpokit_hf.plan.counting import stored
from grpokit_hf.plan.diffusion import ASSUMED, FlowWork, autoencoder, remedies

_FINE = 16  # pixels of a picture's side, for one token


def plan(parameters: Mapping[str, Any], job: Job) -> Needs:
    """The needs of a step of `GlmImageDiT`.

    Args:
        parameters: all of the policy's.
        job: the step.

    Raises:
        UsageError: the model cannot be found, or a setting cannot be used.
    """
    check_dtype(parameters["dtype"])
    quantization = parameters["quantization"]
    check_setting(quantization, trains_base=parameters["lora"] is None, planned=True)
    settings = painting_settings(**{name: parameters[name] for name in PAINTING})
    size = check_size(parameters["size"])
    reading = {name: parameters[name] for name in ("revision", "local_files_only")}
    skeleton = skeleton_of(parameters["model"], size=size, edits=False, **reading)
    writes_in, paints_in = (each.itemsize for each in types(parameters["dtype"], trains_base=False, device="cuda"))
    paints_in = 4 if settings.adapter is None else paints_in
    transformer, adapter = skeleton.transformer, 0
    weights = stored(transformer, width=paints_in, quantization=quantization)
    if settings.adapter is not None:
        if settings.adapter.adapter is not None:
            file = find_lora(settings.adapter.adapter, revision=settings.adapter.revision)
            adapted = continue_lora(transformer, read_lora(file), name=str(settings.adapter.adapter))
        else:
            targets = settings.adapter.targets if "targets" in parameters["lora"] else Painter.lora_targets
            adapted = add_adapter(transformer, settings.adapter, targets)
        adapter = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    del skeleton.ar.model.visual, skeleton.ar.model.vqmodel
    painting = FlowWork(
        transformer=transformer,
        adapter=adapter,
        stored=weights,
        parameters=parameters,
        window=settings.window.width,
        before=settings.before if parameters["shared_noise"] else 0.0,
        continued=settings.adapter is not None and settings.adapter.adapter is not None,
        averaged=settings.average is not None,
        job=job,
        picture=size[0] // _FINE * (size[1] // _FINE),
        calls=2 if parameters["guidance"] > 1 else 1,
        number=paints_in,
    )
    around = count(skeleton.vae) + count(skeleton.text_encoder)
    decoded: dict[str, Any] = {"size": size, "pictures": job.group_size, "most": PIXELS_PER_PASS}
    return Needs(
        parts=(
            *painting.parts(),
            Part(name="writing half", bytes=stored(skeleton.ar, width=writes_in, quantization=quantization)),
            Part(name="autoencoder", bytes=paints_in * around),
            autoencoder(skeleton.vae.config.block_out_channels[1], number=paints_in, **decoded),
        ),
        works=tuple(painting.works()),
        remedies=tuple(remedies(parameters, job)),
        assumptions=(
            *([skeleton.note] if skeleton.note else []),
            "What the autoregressive half writes is kept from step to step; its time is not counted.",
            *ASSUMED,
        ),
    )
