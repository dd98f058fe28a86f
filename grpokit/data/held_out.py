"""Which prompts are held out of training."""

from __future__ import annotations

from collections.abc import Sequence

from grpokit.data.sequences import PromptSequence, Subset, as_prompts
from grpokit.errors import DataError, counted
from grpokit.sampling import STREAMS, mix
from grpokit.types import Prompt


def hold_out(prompts: Sequence[Prompt], fraction: float, seed: int) -> tuple[PromptSequence, PromptSequence]:
    """Split into (training, held out): a pure function of the number of prompts, the fraction and the seed.

    Raises:
        DataError: the fraction is not between 0 and 1, or leaves one of the two parts without prompts.
    """
    if not 0 < fraction < 1:
        raise DataError(f"The held-out fraction must lie between 0 and 1, got {fraction}.")
    held = round(len(prompts) * fraction)
    if held == 0 or held == len(prompts):
        raise DataError(
            f"Holding out {fraction} of {counted(len(prompts), 'prompt')} leaves {len(prompts) - held} for training "
            f"and {held} for evaluation; give more prompts, another fraction, or an evaluation file."
        )
    order = sorted(range(len(prompts)), key=lambda i: (mix(seed, STREAMS["evaluate"], i), i))
    every = as_prompts(prompts)
    return Subset(every, sorted(order[held:])), Subset(every, sorted(order[:held]))
