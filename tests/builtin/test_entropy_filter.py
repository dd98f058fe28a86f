"""Only the decisions of highest entropy get the policy gradient, whatever the cutting."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from grpokit import Rollout, Trainer, UsageError, objectives
from grpokit.builtin.entropy_filter import EntropyFilter, top_entropy
from grpokit.processes.team import Team
from grpokit.training.minibatches import minibatch_rows
from tiny_policies import TinyTokens, digit_sum

PROMPTS = [str(i) for i in range(12)]
ENTROPY = torch.tensor([[1.0, 0.2, 0.7, 0.4], [0.9, 0.1, 9.0, math.nan]])
MASK = torch.tensor([[True, True, True, True], [True, True, False, False]])


@pytest.mark.parametrize(
    ("share", "kept"),
    [
        (1.0, {1.0, 0.9, 0.7, 0.4, 0.2, 0.1}),
        (0.8, {1.0, 0.9, 0.7, 0.4, 0.2}),  # the quantile 0.2 is the second smallest of the six
        (0.6, {1.0, 0.9, 0.7, 0.4}),
        (0.5, {1.0, 0.9, 0.7}),  # the median lies between 0.4 and 0.7
        (0.2, {1.0, 0.9}),
        (0.1, {1.0}),
        (0.0, {1.0}),
    ],
)
def test_the_kept_decisions_by_hand(share: float, kept: set[float]) -> None:
    found = top_entropy(ENTROPY.double(), MASK, share, Team())
    assert {round(x, 6) for x in ENTROPY[found].tolist()} == kept
    assert not found[~MASK].any()


def test_equal_entropies_stay_together_in_spite_of_rounding() -> None:
    entropy = torch.tensor([[2.0, 1.0, 1.0 + 1e-7, 1.0 - 1e-7, 0.5]])
    assert top_entropy(entropy, torch.ones(1, 5).bool(), 0.4, Team()).tolist() == [[True, True, True, True, False]]


def test_no_decision_at_all() -> None:
    assert not top_entropy(ENTROPY, torch.zeros_like(MASK), 0.5, Team()).any()


def first_gradients(policy: TinyTokens, *, share: float = 0.3, **options: Any) -> tuple[list[torch.Tensor], Rollout]:
    """The gradient of each optimizer step of the first step."""
    trainer = Trainer(
        policy,
        [digit_sum],
        PROMPTS,
        prompts_per_step=4,
        group_size=8,
        max_grad_norm=None,
        learning_rate=0.05,
        device="cpu",
        modifiers=[EntropyFilter(share=share)],
        **options,
    )
    seen: list[torch.Tensor] = []
    trainer.updates.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.flatten() for p in trainer.updates.parameters]).clone())
    )
    report = trainer.step()
    return seen, report.rollout


@pytest.mark.parametrize("name", ["token", "sequence"])
def test_any_cutting_gives_the_gradient_of_one_batch(name: str) -> None:
    options: dict[str, Any] = {
        "objective": objectives.GRPO(ratio=name, kl_coef=0.1, entropy_coef=0.01),
        "updates_per_rollout": 2,
        "minibatches": 2,
    }
    whole, _ = first_gradients(TinyTokens(dtype=torch.float64), micro_batch_size=32, **options)
    unfiltered, _ = first_gradients(TinyTokens(dtype=torch.float64), micro_batch_size=32, share=1.0, **options)
    for size, slices in ((1, 1), (3, 1), (8, 3), (32, 3)):
        cut, _ = first_gradients(TinyTokens(dtype=torch.float64, slices=slices), micro_batch_size=size, **options)
        assert (cut[0] - whole[0]).norm() / whole[0].norm() < 1e-12, (size, slices)
        for a, b in zip(cut[1:], whole[1:], strict=True):  # after an update, whose rounding Adam magnifies
            assert (a - b).norm() / b.norm() < 1e-10, (size, slices)
    assert (whole[0] - unfiltered[0]).norm() / unfiltered[0].norm() > 0.1


@pytest.mark.parametrize("minibatches", [1, 2])
def test_the_gradient_is_one_written_by_hand(minibatches: int) -> None:
    gradients, rollout = first_gradients(TinyTokens(dtype=torch.float64), share=0.25, minibatches=minibatches, seed=45)
    rows = minibatch_rows(rollout.groups, minibatches, key=(45, 0, 0))[0]  # with two, they are groups 1 and 3
    rollout, groups = rollout.select(rows), 4 // minibatches
    policy, rewards = TinyTokens(dtype=torch.float64), digit_sum(rollout.samples)
    rewards = torch.tensor(rewards, dtype=torch.float64).reshape(groups, 8)
    view = policy.logprobs(rollout, slice(0, 7))
    threshold = torch.quantile(view.entropy[rollout.mask].detach(), 0.75)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).reshape(-1, 1)
    weights = (
        rollout.mask.double() / rollout.mask.sum(1, keepdim=True) / len(rows)
    )  # the decisions left out still count
    kept = view.entropy >= threshold - 1e-9
    loss = -(torch.where(kept & rollout.mask, view.logprobs, 0.0) * advantages * weights).sum()
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in policy.net.parameters()])
    assert (gradients[0] - expected).norm() / expected.norm() < 1e-12


class Stores(TinyTokens):
    """Its rollout holds the entropies, so that no pass has to find them."""

    def rollout(self, prompts: Any, group_size: int, **options: Any) -> Rollout:
        drawn = super().rollout(prompts, group_size, **options)
        with torch.no_grad():
            entropy = super().logprobs(drawn, slice(0, self.length)).entropy
        return replace(drawn, old=replace(drawn.old, entropy=entropy))


def test_entropies_of_the_rollout_save_a_pass() -> None:
    found, stored = TinyTokens(dtype=torch.float64), Stores(dtype=torch.float64)
    (a,), _ = first_gradients(found, micro_batch_size=32)
    stored.scored.clear()
    (b,), _ = first_gradients(stored, micro_batch_size=32)
    assert torch.allclose(a, b, rtol=1e-12)
    assert len(found.scored) == 2
    assert len(stored.scored) == 2  # one of them in its own rollout


class Inexact(TinyTokens):
    """Its sampler computes in another way, so that the old log-probs come from a pass."""

    def rollout(self, prompts: Any, group_size: int, **options: Any) -> Rollout:
        return replace(super().rollout(prompts, group_size, **options), exact=False)


def test_the_pass_for_the_old_log_probs_gives_the_entropies_too() -> None:
    policy = Inexact(dtype=torch.float64)
    options: dict[str, Any] = {"updates_per_rollout": 2, "micro_batch_size": 32}
    gradients, _ = first_gradients(policy, **options)
    exact, _ = first_gradients(TinyTokens(dtype=torch.float64), **options)
    assert torch.allclose(gradients[0], exact[0], rtol=1e-12)
    assert len(policy.scored) == 3  # that pass and two updates


def test_a_policy_without_entropy_is_told_so() -> None:
    with pytest.raises(UsageError, match=r"needs the entropy of each decision, but this policy's logprobs\(\)"):
        first_gradients(TinyTokens(entropy=False))


class Masked(TinyTokens):
    """All its rows were cut, so none of their decisions counts."""

    def rollout(self, prompts: Any, group_size: int, **options: Any) -> Rollout:
        drawn = super().rollout(prompts, group_size, **options)
        return replace(drawn, mask=torch.zeros_like(drawn.mask))


def test_a_step_without_decisions_is_not_taken_for_a_policy_without_entropy() -> None:
    trainer = Trainer(Masked(), [digit_sum], PROMPTS, modifiers=[EntropyFilter()], device="cpu")
    assert any("all decisions of its rows are masked" in line for line in trainer.step().warnings)


def test_a_share_outside_0_to_1_is_refused() -> None:
    with pytest.raises(UsageError, match=r"share must be at most 1, got 20"):
        EntropyFilter(share=20)
