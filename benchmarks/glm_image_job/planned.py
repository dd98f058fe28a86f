"""What `grpokit plan` expects of the same step, on this GPU."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from grpokit import Trainer
from grpokit_glm_image.plan import plan
from grpokit_glm_image.policy import GlmImageAR
from grpokit_plan import Job as PlannedStep
from grpokit_plan import cards
from grpokit_plan.estimate import Estimate


def planned(trainer: Trainer, *, tiny: bool, prompt_tokens: int, **parameters: Any) -> Estimate:
    """The memory and time that a step of a trainer should take.

    Args:
        trainer: with the sizes of batches that it has now.
        tiny: plan for the tiny model, and for a card that is not here.
        prompt_tokens: of a prompt.
        parameters: of the policy, where they are not its defaults.
    """
    defaults = {p.name: p.default for p in inspect.signature(GlmImageAR).parameters.values()}
    source = {"model": "tiny"} if tiny else {"local_files_only": True}
    step = PlannedStep.of(trainer, reference=trainer.objective.needs_reference, prompt_tokens=prompt_tokens)
    step = replace(step, micro_batch_size=trainer.sizes.micro_batch_size)
    card = cards.here() or cards.by_name("H100")
    return Estimate(card=card, needs=plan({**defaults, "dtype": "bfloat16", **source, **parameters}, step))
