"""How far along one update the reward rises: steps of several lengths, on the same held-out prompts and seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from grpokit import Prompt, RunError
from grpokit.evaluation.intervals import half_width
from grpokit_diagnosis.probe.rebuilt import Rebuilt

LENGTHS = (0.0, 0.1, 1.0, 10.0, 100.0)
"""Multiples of the run's step."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A step of one length, compared with none.

    Attributes:
        length: in steps of the run.
        gain: mean difference of the reward from that without a step; -inf where the policy breaks.
        width: half the 95 % confidence interval of `gain`.
        alike: share of the samples that are scored as without the step.
    """

    length: float
    gain: float
    width: float
    alike: float

    @property
    def verdict(self) -> int:
        """1 where the reward rises beyond chance, -1 where it falls, else 0."""
        return 0 if not abs(self.gain) > self.width else (1 if self.gain > 0 else -1)


def line_search(
    run: Rebuilt,
    start: Sequence[Tensor],
    change: Sequence[Tensor],
    prompts: Sequence[Prompt],
    *,
    samples: int,
    lengths: Sequence[float] = LENGTHS,
) -> list[Point]:
    """Evaluate steps of several lengths along an update, with the settings of training; the weights go back to `start`.

    Args:
        run: the run's parts.
        start: the weights without a step.
        change: of a step of the run.
        prompts: P held-out prompts.
        samples: for each prompt.
        lengths: of the steps; the first is 0.
    """
    points = []
    base: Tensor | None = None
    for length in lengths:
        run.set_weights([old + length * step for old, step in zip(start, change, strict=True)])
        try:
            _, scores = run.sample(prompts, samples, evaluate=False)
        except RunError:  # the policy gives no finite log-prob any more
            points.append(Point(length=length, gain=-math.inf, width=0.0, alike=0.0))
            continue
        totals = scores.totals
        base = totals if base is None else base
        gains = totals - base
        points.append(
            Point(
                length=length,
                gain=float(gains.nanmean()),
                width=half_width(gains.tolist(), scores.groups.tolist()),
                alike=float((gains == 0).double().mean()),
            )
        )
    run.set_weights(start)
    return points
