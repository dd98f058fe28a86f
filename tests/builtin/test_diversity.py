"""Good samples that are unlike the others of their group count more: the factor by hand, and the reward for it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from grpokit import Prompt, RewardError, Sample, Signal, Trainer, UsageError
from grpokit.builtin.diversity import Diversity
from grpokit.builtin.image_rewards import pixel_diversity
from grpokit.rewards.scoring import Scores
from grpokit.rewards.terms import RewardTerm
from tiny_policies import TinyTokens, digit_sum

NAN = math.nan


def scores(diversity: list[float], groups: list[int]) -> Scores:
    matrix = torch.tensor([[0.0] * len(groups), diversity], dtype=torch.float64).T
    return Scores(
        matrix=matrix,
        weights=torch.tensor([1.0, 0.0], dtype=torch.float64),
        groups=torch.tensor(groups),
        names=["trained", "apart"],
        seconds=[0.0, 0.0],
        lost=torch.zeros_like(matrix, dtype=torch.bool),
        asked=[True, True],
    )


def diverse(advantages: torch.Tensor, own: Scores) -> torch.Tensor:
    return Diversity(monitor="apart").rows(Signal.of(advantages), SimpleNamespace(scores=own)).advantages


def test_positive_advantages_count_by_diversity() -> None:
    """Means over the groups are .2 and .5; a group of twins and an unscored row keep theirs."""
    own = scores([0.1, 0.4, 0.3, 0.2, 0.6, NAN, 0.0, 0.0], [7, 3, 7, 7, 3, 3, 1, 1])
    advantages = torch.tensor([1.0, 1.0, -1.0, 2.0, -2.0, 1.0, 1.0, -1.0])
    expected = [0.5, 0.8, -1.0, 2.0, -2.0, 1.0, 1.0, -1.0]
    assert diverse(advantages, own).tolist() == pytest.approx(expected)
    both = diverse(advantages[:, None].expand(-1, 3), own)
    torch.testing.assert_close(both, torch.tensor(expected)[:, None].expand(-1, 3))
    with pytest.raises(RewardError, match=r"at least 0.*'apart' gave -0\.5"):
        diverse(advantages[:2], scores([1.0, -0.5], [0, 0]))


def test_a_step_multiplies_by_the_monitor() -> None:
    def apart(samples: list[Sample]) -> list[float]:
        return [float(i % 2) for i in range(len(samples))]

    terms = [RewardTerm(name="sum", reward=digit_sum), RewardTerm(name="apart", reward=apart, weight=0.0)]
    plain, weighted = (
        Trainer(TinyTokens(), terms, ["1", "2"], modifiers=own, prompts_per_step=2, group_size=4, device="cpu").step()
        for own in ([], [Diversity(monitor="apart")])
    )
    factor = torch.tensor([0.0, 2.0] * 4)
    expected = torch.where(plain.advantages > 0, plain.advantages * factor, plain.advantages)
    torch.testing.assert_close(weighted.advantages, expected)
    assert not torch.equal(weighted.advantages, plain.advantages)
    for name in ("sum", "other"):  # the first one is trained on
        with pytest.raises(UsageError, match=f"Diversity reads the monitor '{name}'"):
            Trainer(TinyTokens(), terms, ["1"], modifiers=[Diversity(monitor=name)])


def test_pixel_diversity_is_the_distance_to_the_nearest_of_the_group() -> None:
    """Of plain greys, by hand; another group, a text and a sample alone do not count."""
    greys = [(0, 51), (1, 0), (0, 0), (0, 204), (2, 51)]
    samples = [
        Sample(prompt=Prompt(text="x"), output=Image.new("L", (40, 20), grey), group=group) for group, grey in greys
    ]
    samples.append(Sample(prompt=Prompt(text="x"), output="no picture", group=1))
    assert pixel_diversity(samples) == pytest.approx([0.2, NAN, 0.2, 0.6, NAN, NAN], nan_ok=True)
