"""What there is to select from, by hand."""

from __future__ import annotations

import pytest

from grpokit import Prompt, RewardTerm, Sample
from grpokit.rewards.scoring import score_samples
from grpokit_diagnosis.probe.spread import Spread, spread


def seen(*groups: list[str], top: float | None = 1.0, bottom: float | None = 0.0) -> Spread:
    """The spread of groups of texts, whose reward is the number at their beginning."""
    samples = []
    for group, texts in enumerate(groups):
        samples += [Sample(prompt=Prompt("p"), output=text, group=group) for text in texts]

    def number(samples: list[Sample]) -> list[float]:
        return [float(sample.output.split()[0]) for sample in samples]

    scores = score_samples([RewardTerm(name="number", reward=number)], samples)
    return spread(samples, scores, top=top, bottom=bottom)


def test_headroom_is_the_best_less_the_mean() -> None:
    found = seen(["0.2 a", "0.4 b"], ["0.5 a", "0.9 b"])
    assert found.mean == pytest.approx(0.5)
    assert found.headroom == pytest.approx(0.15)
    assert found.inside == pytest.approx(((0.1**2 + 0.2**2) / 2) ** 0.5)
    assert found.without == {}


def test_why_groups_have_no_spread() -> None:
    found = seen(["1 a", "1 b"], ["0 a", "0 b"], ["0.5 a", "0.5 b"], ["0.5 a", "0.5 a"], ["0 a", "1 b"])
    assert found.without == {"all at the top": 1, "all at the bottom": 1, "same scores": 1, "same outputs": 1}


def test_an_unknown_range_is_what_was_seen() -> None:
    found = seen(["7 a", "7 b"], ["-3 a", "-3 b"], ["0 a", "0 b"], top=None, bottom=None)
    assert found.without == {"all at the top": 1, "all at the bottom": 1, "same scores": 1}


def test_tiny_rewards_have_a_spread_too() -> None:
    assert seen(["1e-12 a", "3e-12 b"], top=None, bottom=None).without == {}
