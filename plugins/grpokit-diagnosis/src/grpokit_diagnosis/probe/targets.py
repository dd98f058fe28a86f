"""Whether a reward prefers the target to what the policy draws: one with the wrong sign does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from PIL import Image

from grpokit import RewardTerm, Sample
from grpokit.rewards.scoring import Scores, score_samples


@dataclass(frozen=True, kw_only=True)
class TargetScore:
    """The mean total of the targets themselves, and of the samples that were drawn for the same prompts."""

    target: float
    samples: float
    lower: float  # share of the samples that score better than their target


def target_score(terms: Sequence[RewardTerm], samples: Sequence[Sample], scores: Scores) -> TargetScore | None:
    """Score target pictures as if they had been drawn; None where the prompts have none.

    Args:
        terms: the rewards.
        samples: B samples in whole groups.
        scores: theirs.
    """
    if not all(isinstance(sample.prompt.target, Image.Image) for sample in samples):
        return None
    targets = []
    for sample in samples:
        targets.append(replace(sample, output=sample.prompt.target))
    drawn, wanted = scores.totals, score_samples(terms, targets).totals
    return TargetScore(
        target=float(wanted.nanmean()),
        samples=float(drawn.nanmean()),
        lower=float((drawn > wanted).double().mean()),
    )
