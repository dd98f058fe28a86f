"""Whether a reward prefers the target to what the policy draws: one with the wrong sign does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from PIL import Image

from grpokit import RewardTerm, Sample
from grpokit.rewards.scoring import Scores, score_samples


@dataclass(frozen=True, kw_only=True)
class TargetScore:
    """What a reward gives target pictures, and the samples that were drawn for the same prompts.

    Attributes:
        reward: its name.
        target: mean score of the targets.
        samples: mean score of the samples.
        preferred: share of the samples that add more to the total than their target would.
    """

    reward: str
    target: float
    samples: float
    preferred: float


def target_scores(terms: Sequence[RewardTerm], samples: Sequence[Sample], scores: Scores) -> list[TargetScore]:
    """Score target pictures as if they had been drawn, by each reward that compares with them.

    A reward compares if it gives the same picture another score beside another target.

    Args:
        terms: the rewards that are trained on.
        samples: B samples in whole groups.
        scores: theirs.
    """
    if not all(isinstance(sample.prompt.target, Image.Image) for sample in samples):
        return []
    ideal = [replace(sample, output=sample.prompt.target) for sample in samples]
    prompts = [sample.prompt for sample in samples]
    first = samples[0].group
    size = sum(sample.group == first for sample in samples)
    others = prompts[size:] + prompts[:size]  # those of the next group
    elsewhere = []
    for sample, other in zip(ideal, others, strict=True):
        elsewhere.append(replace(sample, prompt=replace(sample.prompt, target=other.target)))
    own, foreign = score_samples(terms, ideal), score_samples(terms, elsewhere)
    found = []
    for place, name in enumerate(scores.names):
        wanted, drawn = own.matrix[:, place], scores.matrix[:, place]
        if torch.equal(wanted.nan_to_num(), foreign.matrix[:, place].nan_to_num()):
            continue
        gain = scores.weights[place] * (drawn - wanted)
        found.append(
            TargetScore(
                reward=name,
                target=float(wanted.nanmean()),
                samples=float(drawn.nanmean()),
                preferred=float((gain > 0).double().mean()),
            )
        )
    return found
