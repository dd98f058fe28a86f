"""How much of a reward is noise, on rewards whose noise is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from grpokit import Prompt, RewardTerm, Sample
from grpokit.rewards.scoring import score_samples
from grpokit_diagnosis.probe.repeatability import repeatability, wrong_signs


def noisy(share: float) -> RewardTerm:
    """A reward that is a number in the text, and noise with this share of the variance of numbers from 0 to 1."""
    generator = torch.Generator().manual_seed(0)
    size = (share / (1 - share) / 12) ** 0.5

    def score(samples: list[Sample]) -> list[float]:
        draws = torch.randn(len(samples), generator=generator) * size
        return [float(sample.output) + float(draw) for sample, draw in zip(samples, draws, strict=True)]

    return RewardTerm(name="noisy", reward=score)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_second_score_shows_the_noise(share: float) -> None:
    numbers = torch.rand(1024, generator=torch.Generator().manual_seed(1)).tolist()
    samples = [Sample(prompt=Prompt("p"), output=str(x), group=i // 8) for i, x in enumerate(numbers)]
    term = noisy(share)
    found = repeatability([term], samples, score_samples([term], samples), size=8)
    assert found.again == pytest.approx(share, abs=0.06)
    assert found.jittered is None


def test_a_picture_that_looks_the_same_gets_the_same_score_or_not() -> None:
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)) for _ in range(16)]
    samples = [Sample(prompt=Prompt("p"), output=picture, group=i // 8) for i, picture in enumerate(pictures)]

    def brightness(samples: list[Sample]) -> list[float]:
        return [float(np.asarray(sample.output).mean()) for sample in samples]

    def last_bit(samples: list[Sample]) -> list[float]:
        return [float((np.asarray(sample.output) % 2).mean()) for sample in samples]

    shares = []
    for score in (brightness, last_bit):
        term = RewardTerm(name="r", reward=score)
        found = repeatability([term], samples, score_samples([term], samples), size=8)
        assert found.again == 0.0
        shares.append(found.noise)
    assert shares[0] < 0.1
    assert shares[1] > 0.5


def test_signs_without_noise() -> None:
    """Of two samples the better one is pushed up: for one of four pairs against the policy's mean."""
    assert wrong_signs(0.0, 2) == pytest.approx(0.25, abs=0.01)


def test_noise_alone_has_every_second_sign_wrong() -> None:
    assert wrong_signs(1.0, 8) == pytest.approx(0.5, abs=0.01)
