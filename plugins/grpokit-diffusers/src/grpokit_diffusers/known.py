"""Which family a pipeline is of: by the name of its class, or as a config says."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from grpokit import UsageError
from grpokit.errors import one_line
from grpokit_diffusers.family import PipelineFamily

FAMILIES: Mapping[str, str] = {
    "ChromaPipeline": "grpokit_diffusers.families.chroma:Chroma",
    "CogView4Pipeline": "grpokit_diffusers.families.cogview4:CogView4",
    "ErnieImagePipeline": "grpokit_diffusers.families.ernie_image:ErnieImage",
    "Flux2KleinPipeline": "grpokit_diffusers.families.flux2_klein:Flux2Klein",
    "Flux2Pipeline": "grpokit_diffusers.families.flux2:Flux2",
    "FluxKontextPipeline": "grpokit_diffusers.families.flux_kontext:FluxKontext",
    "FluxPipeline": "grpokit_diffusers.families.flux:Flux",
    "Krea2Pipeline": "grpokit_diffusers.families.krea2:Krea2",
    "LongCatImageEditPipeline": "grpokit_diffusers.families.longcat_image_edit:LongCatImageEdit",
    "LongCatImagePipeline": "grpokit_diffusers.families.longcat_image:LongCatImage",
    "Lumina2Pipeline": "grpokit_diffusers.families.lumina2:Lumina2",
    "QwenImage21Pipeline": "grpokit_diffusers.families.qwen_image_21:QwenImage21",
    "QwenImageEditPipeline": "grpokit_diffusers.families.qwen_image_edit:QwenImageEdit",
    "QwenImageEditPlusPipeline": "grpokit_diffusers.families.qwen_image_edit_plus:QwenImageEditPlus",
    "QwenImagePipeline": "grpokit_diffusers.families.qwen_image:QwenImage",
    "SanaPipeline": "grpokit_diffusers.families.sana:Sana",
    "StableDiffusion3Pipeline": "grpokit_diffusers.families.sd3:SD3",
    "ZImagePipeline": "grpokit_diffusers.families.z_image:ZImage",
}
"""The class of a pipeline -> its family."""

_ADD = (
    "To train another one, describe it in a subclass of grpokit_diffusers.family.PipelineFamily, and name that: "
    "policy.family=my_package.my_module:MyFamily."
)


def family_of(pipeline: str, scheduler: str, *, model: str, family: str | type | None = None) -> type[PipelineFamily]:
    """The family of a pipeline.

    Args:
        pipeline: the name of its class.
        scheduler: the name of its scheduler's class.
        model: as the user named it.
        family: "package.module:Class", or the class; None for what `FAMILIES` has.

    Raises:
        UsageError: there is no such family, or it cannot take Euler's steps in place of the scheduler's.
    """
    if family is None and pipeline not in FAMILIES:
        raise UsageError(
            f"'{model}' is a {pipeline}, and diffusers-flow knows {', '.join(FAMILIES)}. {_ADD}"
            + (" GLM-Image has a policy of its own, glm-image-dit." if pipeline == "GlmImagePipeline" else "")
        )
    named = FAMILIES[pipeline] if family is None else family
    kind = _imported(named) if isinstance(named, str) else named
    if not (isinstance(kind, type) and issubclass(kind, PipelineFamily)):
        raise UsageError(f"family: {named!r} is not a subclass of grpokit_diffusers.family.PipelineFamily.")
    if scheduler not in kind.schedulers:
        raise UsageError(
            f"The scheduler of '{model}' is {scheduler}. Expected {' or '.join(kind.schedulers)}: log-probs are those "
            "of Euler's steps on straight paths from noise to data."
        )
    return kind


def _imported(name: str) -> object:
    """What "package.module:Class" names."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"family: expected 'package.module:Class' that can be imported, got {name!r}: {one_line(error)}."
        ) from error
