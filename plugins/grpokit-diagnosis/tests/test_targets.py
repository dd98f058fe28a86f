"""Which rewards compare with a target picture, and whether they prefer it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from PIL import Image

from grpokit import Prompt, RewardTerm, Sample
from grpokit.rewards.scoring import score_samples
from grpokit_diagnosis.probe.targets import target_scores


def grey(level: int) -> Image.Image:
    return Image.new("RGB", (4, 4), (level, level, level))


def level_of(picture: object) -> int:
    assert isinstance(picture, Image.Image)
    return picture.getpixel((0, 0))[0]  # type: ignore[index,return-value]


def near(samples: Sequence[Sample]) -> list[float]:
    """How near a picture is to its target."""
    return [-abs(level_of(sample.output) - level_of(sample.prompt.target)) for sample in samples]


def bright(samples: Sequence[Sample]) -> list[float]:
    """How bright it is, whatever the target."""
    return [level_of(sample.output) for sample in samples]


def named(samples: Sequence[Sample]) -> list[float]:
    """Whether it looks like its prompt's text, whatever the target."""
    return [float((level_of(sample.output) > 100) == (sample.prompt.text == "light")) for sample in samples]


@pytest.mark.parametrize(("weight", "preferred"), [(1.0, 0.0), (-1.0, 0.75)])
def test_only_a_reward_that_compares_is_judged(weight: float, preferred: float) -> None:
    dark, light = Prompt("dark", target=grey(10)), Prompt("light", target=grey(200))
    drawn = [(dark, 10), (dark, 90), (light, 250), (light, 90)]
    samples = [Sample(prompt=prompt, output=grey(level), group=int(prompt is light)) for prompt, level in drawn]
    terms = [
        RewardTerm(name="bright", reward=bright, weight=1.0),
        RewardTerm(name="named", reward=named, weight=-1.0),
        RewardTerm(name="near", reward=near, weight=weight),
    ]
    (found,) = target_scores(terms, samples, score_samples(terms, samples))
    assert found.reward == "near"
    assert (found.target, found.samples) == (0.0, -60.0)
    assert found.preferred == preferred
