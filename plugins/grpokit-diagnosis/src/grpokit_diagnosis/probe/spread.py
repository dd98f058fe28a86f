"""What there is to select from: the spread of the reward inside groups, and why some groups have none."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from PIL import Image
from torch import Tensor

from grpokit.group_statistics import Groups
from grpokit.rewards.scoring import Scores
from grpokit.types import Sample

Reason = Literal["same outputs", "all at the top", "all at the bottom", "same scores"]
"""Why a group has no spread. "same scores": the outputs differ, and the reward does not see it."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The totals of some groups.

    Attributes:
        mean: of all samples.
        best: mean over the groups of the best sample's total.
        inside: the standard deviation inside groups.
        between: the standard deviation of the groups' means.
        groups: their number.
        without: reason -> the number of groups without spread.
    """

    mean: float
    best: float
    inside: float
    between: float
    groups: int
    without: Mapping[Reason, int]

    @property
    def headroom(self) -> float:
        """What selecting the best of each group would gain."""
        return self.best - self.mean


def spread(samples: Sequence[Sample], scores: Scores, *, top: float | None, bottom: float | None) -> Spread:
    """The spread of the totals of whole groups.

    Args:
        samples: B samples.
        scores: theirs.
        top: the highest total that there can be, if that is known.
        bottom: the lowest.
    """
    totals, members = scores.totals, Groups(scores.groups)
    scored = ~totals.isnan()
    top = float(totals[scored].max()) if top is None else top
    bottom = float(totals[scored].min()) if bottom is None else bottom
    means, bests, deviations = [], [], []
    without: Counter[Reason] = Counter()
    for group in range(len(members.ids)):
        rows = ((members.index == group) & scored).nonzero()[:, 0]
        if not len(rows):
            continue
        own = totals[rows]
        means.append(float(own.mean()))
        bests.append(float(own.max()))
        deviations.append(float((own - own.mean()).square().mean()))
        if float(own.max() - own.min()) <= 1e-9 * max(abs(top), abs(bottom)):
            outputs = {digest(samples[row].output) for row in rows.tolist()}
            without[_reason(own, len(outputs), top, bottom)] += 1
    averages = torch.tensor(means)
    return Spread(
        mean=float(averages.mean()),
        best=sum(bests) / len(bests),
        inside=(sum(deviations) / len(deviations)) ** 0.5,
        between=float(averages.std()) if len(averages) > 1 else 0.0,
        groups=len(means),
        without=dict(without),
    )


def _reason(totals: Tensor, outputs: int, top: float, bottom: float) -> Reason:
    """Why the totals of a group with so many different outputs are equal."""
    if outputs == 1:
        return "same outputs"
    near = 1e-6 * max(1e-12, top - bottom)
    if top > bottom and float(totals[0]) >= top - near:
        return "all at the top"
    if top > bottom and float(totals[0]) <= bottom + near:
        return "all at the bottom"
    return "same scores"


def digest(output: object) -> bytes:
    """What is equal where two outputs are the same."""
    if isinstance(output, Image.Image):
        content = output.tobytes()
    else:
        content = str(output).encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).digest()
