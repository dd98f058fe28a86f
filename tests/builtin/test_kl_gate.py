"""The KL that acts on suspect samples only: which they are, how their share adapts, and what the loss of them is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpokit import Modifier, Signal, Step, Trainer, UsageError
from grpokit.builtin.kl_gate import KLGate, ranks
from grpokit.divergence import kl_divergence
from grpokit.objectives import GRPO
from grpokit.rewards.scoring import Scores
from grpokit.rewards.terms import RewardTerm
from grpokit.settings import KLKind
from tiny_policies import TinyGaussian, TinyTokens, digit_sum

PROMPTS = ["1", "2", "3", "4"]


def scored(trained: list[float], *monitors: list[float]) -> Scores:
    matrix = torch.tensor([trained, *monitors], dtype=torch.float64).T
    weights = torch.tensor([1.0] + [0.0] * len(monitors), dtype=torch.float64)
    names = ["trained", *(f"monitor {i}" for i in range(len(monitors)))]
    return Scores(
        matrix=matrix,
        weights=weights,
        groups=torch.zeros(len(trained), dtype=torch.int64),
        names=names,
        seconds=[0.0] * len(names),
        lost=torch.zeros_like(matrix, dtype=torch.bool),
        asked=[True] * len(names),
    )


def test_samples_whose_reward_outranks_their_monitors_most() -> None:
    """Ranks 0, 1/4 .. 1 by the reward, and .375, .125, .8125, .625, .5625 by the monitors' mean; equals go together."""
    nan = float("nan")
    scores = scored([1, 2, 3, 4, 5], [3, 1, 4, 5, 2], [5.0, 5.0, 7.0, 5.0, 7.0], [nan] * 5)
    assert KLGate(share=0.2).suspects(scores).tolist() == [False, False, False, False, True]
    both = KLGate(share=0.4, high=0.5).suspects(scores)
    assert both.tolist() == [False, True, False, True, True]
    assert KLGate().suspects(scored([1, 2], [nan, nan])) is None
    beside = scored([1, 2, 3, 4, 5], [3, 1, 4, 5, 2], [5.0, 5.0, 7.0, 5.0, 7.0], [9.0, 8.0, 7.0, 6.0, 5.0])
    gate = KLGate(share=0.4, high=0.5, monitors=["monitor 0", "monitor 1"])
    assert torch.equal(gate.suspects(beside), both)


@given(st.lists(st.sampled_from([0.0, 1.0, 2.5, 7.0, float("nan")]), min_size=1, max_size=9))
def test_ranks_are_those_of_pairs(values: list[float]) -> None:
    found = ranks(torch.tensor(values, dtype=torch.float64)).tolist()
    known = [x for x in values if x == x]
    for x, rank in zip(values, found, strict=True):
        if x == x:
            others = sum(y < x for y in known) + (sum(y == x for y in known) - 1) / 2
            assert rank == pytest.approx(others / max(1, len(known) - 1))
        else:
            assert rank != rank


def test_the_share_follows_the_suspicion_and_is_kept_in_checkpoints() -> None:
    gate = KLGate(share=0.1, low=0.08, high=0.12)
    calm, apart, further = ([1, 2, 3, 4], m := [1, 2, 3, 4]), ([1, 2, 3, 4], [2, 1, 3, 4]), ([1, 2, 3, 4], [4, 3, 2, 1])
    shares = []
    for trained, monitor in (apart, apart, further, calm, calm):
        gate.suspects(scored(trained, monitor))
        shares.append(gate.metrics()["kl_gate/share"])
    assert m == calm[1]
    assert shares == pytest.approx([0.1, 0.1, 0.11, 0.099, 0.099])
    other = KLGate()
    other.load_state_dict(gate.state_dict())
    assert other.state_dict() == gate.state_dict()
    for _ in range(3):
        other.suspects(scored([1, 2, 3, 4], [4, 3, 2, 1]))
    assert other.metrics() == gate.metrics()  # as suspect as one of the last steps


def test_the_share_is_compared_with_the_last_twenty_steps() -> None:
    """Mean suspicions .5, 25 times .1, and .3: above the last twenty, and not above the first."""
    gate = KLGate(share=0.5, high=1.0)
    gate.suspects(scored([1, 2], [2, 1]))
    for monitor in (*([2.0, 1, 4, 3, 5],) * 25, [5.0, 4, 3, 2, 1]):
        gate.suspects(scored([1, 2, 3, 4, 5], monitor))
    assert gate.metrics()["kl_gate/share"] == pytest.approx(0.495)  # .5 x .9 x 1.1


class Half(Modifier):
    """Leaves the KL to the first half of the rows."""

    def rows(self, signal: Signal, step: Step) -> Signal:
        rows = len(signal.advantages)
        return replace(signal, kl_weights=(torch.arange(rows) < rows // 2).double())


@pytest.mark.parametrize(
    ("kind", "kl"),
    [(TinyTokens, "k3"), (TinyTokens, "k1"), (TinyGaussian, "gaussian")],
    ids=["tokens", "tokens by k1", "gaussian"],
)
@pytest.mark.parametrize("cut", [{}, {"micro_batch_size": 3, "rollout_batch_size": 4}], ids=["whole", "cut"])
def test_the_kl_is_that_of_some_rows(kind: Any, kl: KLKind, cut: dict[str, int]) -> None:
    policy = kind()
    trainer = Trainer(
        policy,
        [RewardTerm(name="flat", reward=lambda samples: [0.0] * len(samples))],
        PROMPTS,
        objective=GRPO(kl_coef=0.5, kl=kl),
        learning_rate=1e-7,
        modifiers=[Half()],
        max_zero_std_steps=None,
        device="cpu",
        **cut,
    )
    with torch.no_grad():
        for module in policy.modules().values():
            for x in module.parameters():
                x.add_(0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)))
    report = trainer.step()
    rollout = report.rollout
    with torch.no_grad():
        new = policy.logprobs(rollout, slice(None))
        with policy.reference():
            reference = policy.logprobs(rollout, slice(None))
    kls = kl_divergence(new, reference, rollout.mask, kl)
    decided = rollout.mask.sum()
    assert report.metrics["kl"] == pytest.approx(float(kls[: rollout.rows // 2].sum() / decided), rel=1e-3)
    assert report.metrics["kl"] != pytest.approx(float(kls.sum() / decided), rel=0.1)


def test_a_gate_needs_a_monitor_and_a_kl() -> None:
    monitor = RewardTerm(name="m", reward=digit_sum, weight=0.0)
    held = GRPO(kl_coef=0.1)
    cases: list[tuple[list[RewardTerm], dict[str, Any]]] = [
        ([monitor], {"objective": GRPO()}),
        ([], {"objective": held}),
    ]
    for monitors, more in cases:
        with pytest.raises(UsageError, match="kl-gate needs a KL"):
            Trainer(TinyTokens(), [digit_sum, *monitors], PROMPTS, modifiers=[KLGate()], device="cpu", **more)
