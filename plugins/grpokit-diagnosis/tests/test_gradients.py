"""Signal and noise of gradients that were made with both known."""

from __future__ import annotations

import pytest
import torch

from grpokit_diagnosis.probe.gradients import direction, shared


def made(groups: int, signal: float, noise: float, *, seed: int = 0) -> torch.Tensor:
    """Gradients [groups, 400] with a mean of the length sqrt(signal), and this variance in all."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.full((400,), (signal / 400) ** 0.5)
    return mean + torch.randn(groups, 400, generator=generator) * (noise / 400) ** 0.5


def test_signal_and_noise_are_told_apart() -> None:
    found = direction(made(64, signal=1.0, noise=20.0))
    assert found.signal == pytest.approx(1.0, abs=0.15)
    assert found.noise == pytest.approx(20.0, rel=0.05)
    assert found.balance == pytest.approx(20.0, rel=0.2)
    assert found.is_clear


def test_the_cosine_is_that_of_two_batches() -> None:
    found = direction(made(64, signal=1.0, noise=20.0))
    batches = [made(20, signal=1.0, noise=20.0, seed=seed).mean(0) for seed in range(40)]
    cosines = [torch.cosine_similarity(a, b, dim=0) for a, b in zip(batches[::2], batches[1::2], strict=True)]
    assert found.cosine(20) == pytest.approx(float(torch.stack(cosines).mean()), abs=0.1)


def test_noise_alone_has_no_direction() -> None:
    clear = [direction(made(32, signal=0.0, noise=1.0, seed=seed)).is_clear for seed in range(40)]
    assert sum(clear) <= 2  # 1 % by chance


def test_two_gradients_by_hand() -> None:
    found = direction(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    assert found.signal == 0.0  # the product of the two
    assert found.noise == 2.0  # the mean square less that


def test_rewards_that_pull_against_each_other() -> None:
    first = made(64, signal=1.0, noise=4.0)
    assert shared(first, -first) == pytest.approx(-direction(first).signal)
