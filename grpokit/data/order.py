"""Which prompts a step trains on, and which are held out: pure functions of the seed."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from grpokit.data.sequences import PromptSequence, Subset, as_prompts
from grpokit.errors import DataError, counted
from grpokit.sampling import STREAMS, mix, permutation
from grpokit.types import Prompt


def prompt_indices(seed: int, step: int, *, per_step: int, total: int) -> list[int]:
    """Which prompts step number `step` (from 0) trains on; every pass over the data has an order of its own.

    >>> sorted(prompt_indices(1, 0, per_step=2, total=4) + prompt_indices(1, 1, per_step=2, total=4))
    [0, 1, 2, 3]
    """
    places = (divmod(step * per_step + i, total) for i in range(per_step))
    return [_order(total, seed, epoch)[place] for epoch, place in places]


def further_indices(
    seed: int, step: int, *, attempt: int, places: Iterable[int], total: int, used: Iterable[int]
) -> list[int]:
    """Which prompts take part when some of a step's groups are drawn anew, one for each place.

    Args:
        seed: the run's.
        step: from 0.
        attempt: from 1.
        places: the positions of these groups in the step.
        total: number of prompts.
        used: prompts to avoid while there are others.

    >>> sorted(further_indices(1, 0, attempt=1, places=[0, 3], total=4, used=[0, 1]))
    [2, 3]
    """
    taken = set(used)
    indices = []
    for place in places:
        start = mix(seed, STREAMS["data"], step, attempt, place) % total
        around = ((start + i) % total for i in range(total))
        indices.append(next((i for i in around if i not in taken), start))
        taken.add(indices[-1])
    return indices


@functools.lru_cache(maxsize=4)
def _order(total: int, seed: int, epoch: int) -> list[int]:
    return permutation(total, seed, STREAMS["data"], epoch)


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
