"""How much of a reward's spread inside a group is noise: the same samples are scored again, and copies that nobody
could tell apart.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from PIL import Image, ImageChops
from torch import Tensor

from grpokit import RewardTerm, Sample
from grpokit.group_statistics import Groups
from grpokit.rewards.scoring import Scores, score_samples

_DRAWS = 20_000  # groups that are made up for each size
_QUALITY = 95  # of the copy as a JPEG
_LARGE = 256  # pixels a side, from which nobody sees a shift by one


@dataclass(frozen=True, kw_only=True)
class Repeatability:
    """What a second score of the same samples says.

    Attributes:
        again: share of the variance inside groups that differs when the same samples are scored again, from 0 to 1.
        jittered: the same for copies that nobody could tell apart; None where there are none.
        wrong: group size -> share of the samples whose advantage has the wrong sign with so much noise.
    """

    again: float
    jittered: float | None
    wrong: Mapping[int, float]

    @property
    def noise(self) -> float:
        """The larger of the two shares."""
        return max(self.again, self.jittered or 0.0)


def repeatability(
    terms: Sequence[RewardTerm], samples: Sequence[Sample], scores: Scores, *, size: int
) -> Repeatability:
    """Score samples again.

    Args:
        terms: the rewards.
        samples: B samples in whole groups.
        scores: theirs, the first time.
        size: of the groups.
    """
    again = _noise(scores, score_samples(terms, samples))
    copies = [_copy(sample) for sample in samples]
    jittered = None
    if all(copy is not None for copy in copies):
        jittered = _noise(scores, score_samples(terms, [copy for copy in copies if copy is not None]))
    noise = max(again, jittered or 0.0)
    return Repeatability(
        again=again,
        jittered=jittered,
        wrong={each: wrong_signs(noise, each) for each in (size, 2 * size, 4 * size)},
    )


def _noise(first: Scores, second: Scores) -> float:
    """The share of the first totals' variance inside groups that is noise."""
    groups = Groups(first.groups)
    scored = ~(first.totals.isnan() | second.totals.isnan())
    if not scored.any():
        return 0.0
    deviations = groups.centre(first.totals, scored)[scored]
    differences = groups.centre(second.totals - first.totals, scored)[scored]  # a shift of a whole group is no noise
    spread = float(deviations.square().mean())
    if spread < 1e-24:
        return 0.0
    return min(1.0, float(differences.square().mean()) / 2 / spread)


def _copy(sample: Sample) -> Sample | None:
    """A copy that looks the same: a picture as JPEG, a large one shifted by a pixel; None of other outputs."""
    if not isinstance(sample.output, Image.Image):
        return None
    memory = io.BytesIO()
    picture = sample.output.convert("RGB")
    if min(picture.size) >= _LARGE:
        picture = ImageChops.offset(picture, 1, 0)
    picture.save(memory, "JPEG", quality=_QUALITY)
    return replace(sample, output=Image.open(memory).convert("RGB"))


def wrong_signs(noise: float, size: int) -> float:
    """How many samples of a group get an advantage of the wrong sign: better than the policy's mean, and pushed down.

    It is counted on made-up groups of Gaussian scores.

    Args:
        noise: share of the scores' variance that is noise.
        size: of the groups.

    >>> [round(wrong_signs(0.0, size), 2) for size in (2, 8, 32)]
    [0.25, 0.12, 0.06]
    """
    generator = torch.Generator().manual_seed(size)
    groups = _DRAWS // size + 1
    truth = torch.randn(groups, size, generator=generator)
    score = truth * (1 - noise) ** 0.5 + torch.randn(groups, size, generator=generator) * noise**0.5
    advantage: Tensor = score - score.mean(1, keepdim=True)
    return float((advantage * truth < 0).double().mean())
