"""How far along one update the reward rises: steps of several lengths, on the same held-out prompts and seeds."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from grpokit import Prompt, RunError
from grpokit.evaluation.intervals import half_width
from grpokit_diagnosis.probe.rebuilt import Rebuilt
from grpokit_diagnosis.probe.spread import digest

LENGTHS = (0.0, 0.1, 1.0, 10.0, 100.0)
"""Multiples of the run's step."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A step of one length, compared with none.

    Attributes:
        length: in steps of the run.
        gain: mean difference of the reward from that without a step; -inf where the policy breaks.
        width: half the 95 % confidence interval of `gain`.
        same_outputs: share of the samples that are drawn as without the step.
    """

    length: float
    gain: float
    width: float
    same_outputs: float

    @property
    def verdict(self) -> int:
        """1 where the reward rises beyond chance, -1 where it falls, else 0."""
        if self.gain > self.width:
            return 1
        return -1 if self.gain < -self.width else 0


def line_search(
    run: Rebuilt,
    start: Sequence[Tensor],
    change: Sequence[Tensor],
    prompts: Sequence[Prompt],
    *,
    samples: int,
) -> list[Point]:
    """Evaluate steps of several lengths along an update, with the settings of training; the weights go back to `start`.

    Args:
        run: the run's parts.
        start: the weights without a step.
        change: of each parameter by a step of the length 1.
        prompts: P held-out prompts.
        samples: for each prompt.
    """
    points = []
    base: Tensor | None = None
    drawn: Sequence[bytes] = ()
    for length in LENGTHS:
        run.set_weights([old + length * step for old, step in zip(start, change, strict=True)])
        try:
            outputs, scores = run.sample(prompts, samples, evaluate=False)
        except RunError:  # the policy gives no finite log-prob any more
            points.append(Point(length=length, gain=-math.inf, width=0.0, same_outputs=0.0))
            continue
        totals, digests = scores.totals, [digest(sample.output) for sample in outputs]
        if base is None:
            base, drawn = totals, digests
        gains = totals - base
        same = sum(map(operator.eq, digests, drawn))
        points.append(
            Point(
                length=length,
                gain=float(gains.nanmean()),
                width=half_width(gains.tolist(), scores.groups.tolist()),
                same_outputs=same / len(drawn),
            )
        )
    run.set_weights(start)
    return points
