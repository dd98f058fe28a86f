"""Both halves of one GLM-Image as policies, which the phases of a run train in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from grpokit import Policy, UsageError
from grpokit.errors import nearest
from grpokit.plan import MOMENTS, Job, Needs, Part, Remedy
from grpokit.settings import keywords_of
from grpokit_glm_image import dit_plan, policy
from grpokit_glm_image import plan as ar_plan
from grpokit_glm_image.dit import GlmImageDiT
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.prompts import PromptEncoder
from grpokit_glm_image.settings import HALVES, HalvesSettings, PipelineSettings

_PLANS = {"ar": ar_plan.plan, "dit": dit_plan.plan}
_DRAWING = "weights for drawing"  # of a plan: the half that writes has them, whichever learns
_LEARNT = ("adapter", "optimizer", "average", "reference")  # parts of a plan that stay while the other half learns


@keywords_of(HalvesSettings)
def halves(settings: HalvesSettings) -> Mapping[str, Policy]:
    """Both halves of one GLM-Image. The arguments are those of `HalvesSettings`.

    Returns:
        "ar" and "dit". What one has learnt, the other sees.

    Raises:
        UsageError: the model or a setting cannot be used.
    """
    writes = GlmImageAR(**settings.parameters("ar"))
    paints = GlmImageDiT(writes, size=settings.size, **(settings.dit or {}))
    writes.paint_with(paints.painter, evaluating=paints.averaged)
    return {"ar": writes, "dit": paints}


def reader(parameters: Mapping[str, Any]) -> PromptEncoder:
    """What reads prompts, from all parameters of `halves`, without the model's weights.

    Raises:
        UsageError: as of `halves`, where that is known without weights.
    """
    return policy.reader(HalvesSettings(**parameters).parameters("ar"))


def plan(parameters: Mapping[str, Any], job: Job) -> Needs:
    """The needs of a step of the half that `job` says, and what the other one keeps meanwhile.

    Args:
        parameters: all of `halves`.
        job: the step.

    Raises:
        UsageError: the model cannot be found, or a setting cannot be used.
    """
    settings, name = HalvesSettings(**parameters), job.policy or "ar"
    if name not in HALVES:
        raise UsageError(f"There is no half '{name}'{nearest(name, HALVES)}: glm-image gives {' and '.join(HALVES)}.")
    needs = {half: make(settings.parameters(half), job) for half, make in _PLANS.items()}
    own, other = needs[name], needs["dit" if name == "ar" else "ar"]
    idle, writing = settings.offload == "idle", needs["ar"]
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
    shared = [field.name for field in fields(PipelineSettings)]
    return remedy if key in shared else replace(remedy, words=(word.replace("policy.", f"policy.{half}.", 1),))
