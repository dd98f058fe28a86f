"""What a run has gained on held-out prompts, with the settings of training and with those of its evaluations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from grpokit import Prompt
from grpokit.config.schema import RunConfig
from grpokit.evaluation.intervals import half_width, student_t
from grpokit_diagnosis.probe.rebuilt import Rebuilt, rebuilt


@dataclass(frozen=True, kw_only=True)
class Gain:
    """How the reward has changed from the untrained policy to a checkpoint, on the same prompts and seeds.

    Attributes:
        before: mean.
        after: mean.
        width: half the 95 % confidence interval of the change.
        between: variance of the change between prompts.
        within: variance of the change between samples of a prompt.
        prompts: their number.
    """

    before: float
    after: float
    width: float
    between: float
    within: float
    prompts: int

    @property
    def change(self) -> float:
        """The change of the mean."""
        return self.after - self.before

    def expected_width(self, prompts: int, samples: int) -> float:
        """Half the 95 % interval that so many prompts with so many samples would have."""
        variance = (self.between + self.within / samples) / prompts
        return student_t(prompts - 1) * math.sqrt(variance)


def gains(
    config: RunConfig, phase: str, ends: tuple[Path | None, Path], *, samples: int, most: int
) -> tuple[Gain, Gain]:
    """The gain with the settings of training, and with those of evaluations.

    Args:
        config: the run's.
        phase: whose policy draws.
        ends: two checkpoints that are compared; None: before the first step.
        samples: for each prompt; at least 2.
        most: prompts.
    """
    totals = []
    prompts: Sequence[Prompt] = ()
    groups = torch.zeros(0)
    with rebuilt(config, phase, None) as run:
        prompts = run.held_out[:most]
        for place in ends:
            if place is not None:
                run.load(place)
            both = [run.sample(prompts, samples, evaluate=evaluate)[1] for evaluate in (False, True)]
            totals.append([scores.totals for scores in both])
            groups = both[0].groups
    pairs = zip(*totals, strict=True)
    training, evaluation = (_gain(before, after, groups, len(prompts)) for before, after in pairs)
    return training, evaluation


def _gain(before: Tensor, after: Tensor, groups: Tensor, prompts: int) -> Gain:
    """The gain from two columns [B], a prompt's samples next to each other."""
    change = after - before
    table = change.reshape(prompts, -1)  # [P, S]
    scored = table[~table.isnan().any(1)]
    within = float(scored.var(1).mean())
    means = float(scored.mean(1).var()) if len(scored) > 1 else 0.0
    return Gain(
        before=float(before.nanmean()),
        after=float(after.nanmean()),
        width=half_width(change.tolist(), groups.tolist()),
        between=max(0.0, means - within / table.shape[1]),
        within=within,
        prompts=len(scored),
    )


def samples_for(run: Rebuilt, prompts: int) -> int:
    """Samples of each prompt, for about as many in all as a step of the run has, and at least 256."""
    return max(1, math.ceil(max(256, run.rows) / prompts))
