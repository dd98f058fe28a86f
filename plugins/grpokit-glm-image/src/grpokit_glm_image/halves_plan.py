"""What a step of glm-image needs, for `grpokit plan`: the half that learns, and what the other one keeps meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from grpokit import UsageError
from grpokit.errors import nearest
from grpokit_glm_image import dit_plan
from grpokit_glm_image import plan as ar_plan
from grpokit_glm_image.settings import HALVES, HalvesSettings, PipelineSettings
from grpokit_plan import MOMENTS, Job, Needs, Part, Remedy

_PLANS = {"ar": ar_plan.plan, "dit": dit_plan.plan}
_DRAWING = "weights for drawing"  # of a plan: the half that writes has them, whichever learns
_LEARNT = ("adapter", "optimizer", "average", "reference")  # parts of a plan that stay while the other half learns


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
