"""Both halves of one GLM-Image as policies, which the phases of a run train in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpokit import Policy
from grpokit.settings import keywords_of
from grpokit_glm_image import policy
from grpokit_glm_image.dit import GlmImageDiT
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.prompts import PromptEncoder
from grpokit_glm_image.settings import HalvesSettings


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
