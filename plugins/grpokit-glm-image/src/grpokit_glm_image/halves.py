"""Both halves of one GLM-Image as policies, which the phases of a run train in turn."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpokit import Policy, UsageError
from grpokit.errors import nearest
from grpokit.plan import MOMENTS, Job, Needs, Part, Remedy
from grpokit.registry.synonyms import hint
from grpokit_glm_image import dit_plan, policy
from grpokit_glm_image import plan as ar_plan
from grpokit_glm_image.dit import GlmImageDiT
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.prompts import PromptEncoder
from grpokit_glm_image.settings import Offload, PaintingSettings
from grpokit_hf.models.quantized import Quantization

_COMMON = ("model", "size", "edits", "dtype", "quantization", "device", "offload", "revision", "local_files_only")
_HALVES = {"ar": GlmImageAR, "dit": GlmImageDiT}
_PLANS = {"ar": ar_plan.plan, "dit": dit_plan.plan}
_DRAWING = "weights for drawing"  # of a plan: the half that writes has them, whichever learns
_LEARNT = ("adapter", "optimizer", "average", "reference")  # parts of a plan that stay while the other half learns


def halves(
    model: Any = "zai-org/GLM-Image",
    *,
    size: Sequence[int] = (512, 512),
    edits: bool = False,
    ar: Mapping[str, Any] | None = None,
    dit: Mapping[str, Any] | None = None,
    dtype: str = "auto",
    quantization: Quantization | None = None,
    device: str | None = None,
    offload: Offload = "none",
    revision: str | None = None,
    local_files_only: bool = False,
) -> Mapping[str, Policy]:
    """Both halves of one GLM-Image.

    Args:
        model: as of `GlmImageAR`.
        size: height and width of the pictures in pixels, multiples of 32.
        edits: each prompt brings pictures to edit, which both halves see.
        ar: further parameters of `GlmImageAR`.
        dit: further parameters of `GlmImageDiT`.
        dtype: of the weights: "auto", "float32" or "bfloat16".
        quantization: "4bit" or "8bit", for the blocks of both halves, each with its own `lora`.
        device: where to load the weights; None loads on the GPU if there is one.
        offload: "idle" keeps the frozen weights of one half in the CPU's memory while the other one is at work; "none"
            keeps both halves on the device.
        revision: a branch, tag or commit of the hub's repository.
        local_files_only: use the cache and ask no hub.

    Returns:
        "ar" and "dit". What one has learnt, the other sees.

    Raises:
        UsageError: the model or a setting cannot be used.
    """
    _check({"ar": ar, "dit": dit})
    _check_painting({"size": size, "dit": dit, "quantization": quantization})  # before weights are read
    writes = GlmImageAR(
        model,
        size=size,
        edits=edits,
        dtype=dtype,
        quantization=quantization,
        device=device,
        offload=offload,
        revision=revision,
        local_files_only=local_files_only,
        **(ar or {}),
    )
    paints = GlmImageDiT(writes, size=size, **(dit or {}))
    writes.paint_with(paints.painter, evaluating=paints.averaged)
    return {"ar": writes, "dit": paints}


def reader(parameters: Mapping[str, Any]) -> PromptEncoder:
    """What reads prompts, from all parameters of `halves`, without the model's weights.

    Raises:
        UsageError: as of `halves`, where that is known without weights.
    """
    _check(parameters)
    _check_painting(parameters)
    return policy.reader(_all("ar", parameters))


def plan(parameters: Mapping[str, Any], job: Job) -> Needs:
    """The needs of a step of the half that `job` says, and what the other one keeps meanwhile.

    Args:
        parameters: all of `halves`.
        job: the step.

    Raises:
        UsageError: the model cannot be found, or a setting cannot be used.
    """
    _check(parameters)
    name = job.policy or "ar"
    if name not in _HALVES:
        raise UsageError(f"There is no half '{name}'{nearest(name, _HALVES)}: glm-image gives {' and '.join(_HALVES)}.")
    own, other = (_PLANS[half](_all(half, parameters), job) for half in (name, *(set(_HALVES) - {name})))
    idle, writing = parameters["offload"] == "idle", own if name == "ar" else other
    stays = [part for part in other.parts if part.name in _LEARNT]
    if idle:  # its weights leave, but for those that train
        stays += [part for part in other.parts if part.name == "weights" and part.moments == MOMENTS]
    there = "on the GPU with its weights while it is at work" if idle else "there with its weights"
    return Needs(
        parts=(
            *(part for part in own.parts if part.name != _DRAWING),
            *(part for part in writing.parts if part.name == _DRAWING),
            Part(name="other half learns", bytes=sum(part.bytes for part in stays)),
        ),
        works=own.works,
        remedies=tuple(_of_half(remedy, name) for remedy in own.remedies),
        assumptions=(
            *own.assumptions,
            f"The other half is {there}, and always with its adapter, optimizer, average and reference.",
        ),
    )


def _of_half(remedy: Remedy, half: str) -> Remedy:
    """A remedy of a half as one of both; None if it is not offered here."""
    (word,) = remedy.words
    key = word.removeprefix("policy.").partition("=")[0]
    return remedy if key in _COMMON else replace(remedy, words=(word.replace("policy.", f"policy.{half}.", 1),))


def _check_painting(parameters: Mapping[str, Any]) -> None:
    """Refuse settings of the half that paints, where no weights are needed to know."""
    PaintingSettings(**_all("dit", parameters)).check_here()


def _all(half: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a half."""
    declared = inspect.signature(_HALVES[half]).parameters.values()
    defaults = {p.name: p.default for p in declared}
    common = {name: parameters[name] for name in _COMMON if name in parameters}
    return {**defaults, **common, **(parameters[half] or {})}


def _check(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters of a half that it does not have, or that are for both.

    Raises:
        UsageError: naming the first one.
    """
    for half, kind in _HALVES.items():
        own = parameters[half]
        if own is None:
            continue
        if not isinstance(own, Mapping):
            raise UsageError(f"{half} must be keys with values, such as {{lora: {{r: 16}}}}; got {own!r}.")
        known = [name for name in inspect.signature(kind).parameters if name not in _COMMON]
        for name in own:
            if name in _COMMON:
                raise UsageError(f"{half}: {name} is for both halves. Set it as policy.{name}.")
            if name not in known:
                raise UsageError(
                    f"{half}: there is no parameter '{name}'{hint(name, known)}. There are {', '.join(known)}."
                )
