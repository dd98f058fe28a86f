"""Rollouts whose sampler is not the policy that is trained: importance weights, age, and what is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from grpokit import Correction, Decisions, Rollout, RunError, Trainer, UsageError, objectives
from grpokit.divergence import correction_weights
from grpokit.processes.team import Team
from tiny_policies import TinyTokens, digit_sum

PROMPTS = [str(i) for i in range(12)]
LOG = torch.tensor([[0.25, 1.5, 4.0, 9.0], [0.5, 0.5, 0.5, 9.0]], dtype=torch.float64).log()
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize(
    ("options", "expected"),
    [  # ratios of 1/4, 3/2 and 4, and of 1/2 twice; their products are 3/2 and 1/4
        ({"how": "truncate"}, [[0.25, 1.5, 2, 1], [0.5, 0.5, 1, 1]]),
        ({"how": "truncate", "low": 0.4, "high": 3}, [[0.4, 1.5, 3, 1], [0.5, 0.5, 1, 1]]),
        ({"how": "mask"}, [[0.25, 1.5, 0, 1], [0.5, 0.5, 1, 1]]),
        ({"how": "mask", "low": 0.4, "high": 5}, [[0, 1.5, 4, 1], [0.5, 0.5, 1, 1]]),
        ({"how": "truncate", "per": "sequence"}, [[1.5, 1.5, 1.5, 1], [0.25, 0.25, 1, 1]]),
        ({"how": "mask", "per": "sequence", "low": 0.4}, [[1.5, 1.5, 1.5, 1], [0, 0, 1, 1]]),
    ],
)
def test_weights_by_hand(options: dict[str, Any], expected: list[list[float]]) -> None:
    sampled = torch.full_like(LOG, -3.0)
    sampled[~MASK] = torch.nan
    weights = correction_weights(Correction(**options), LOG - 3.0, sampled, MASK)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("bounds", [{"low": 1.5}, {"high": 0.5}])
def test_bounds_that_exclude_equal_log_probs_are_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="needs low <= 1 <= high"):
        Correction(**bounds)


def test_weights_multiply_the_surrogate_and_nothing_else() -> None:
    new = Decisions(logprobs=torch.tensor([[-1.0, -2.0]]), entropy=torch.tensor([[0.7, 0.2]]))
    reference = Decisions(logprobs=torch.tensor([[-1.5, -1.0]]))
    mask, advantages = torch.ones(1, 2, dtype=torch.bool), torch.tensor([2.0])
    objective = objectives.GRPO(kl_coef=0.5, entropy_coef=0.1)
    d = reference.logprobs - new.logprobs
    rest = 0.5 * (d.exp() - d - 1) - 0.1 * new.entropy
    loss = objective(new, new, advantages, mask, reference, correction=torch.tensor([[3.0, 0.0]]))
    torch.testing.assert_close(loss.value, torch.tensor([[-6.0, 0.0]]) + rest)


class Biased(TinyTokens):
    """One decision among three: a prompt's four rows are 0, 0, 1 and 2, as a sampler of 1/2, 1/4 and 1/4 draws them."""

    ACTIONS, SAMPLER = torch.tensor([0, 0, 1, 2]), torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)

    def __init__(self) -> None:
        super().__init__(vocab=3, length=1, dtype=torch.float64)

    def rollout(self, prompts: Any, group_size: int, **options: Any) -> Rollout:
        drawn = super().rollout(prompts, group_size, **options)
        actions = self.ACTIONS.repeat(len(prompts))[:, None]
        return replace(
            drawn,
            samples=[replace(s, output=str(int(a))) for s, a in zip(drawn.samples, actions, strict=True)],
            old=Decisions(logprobs=self.SAMPLER[actions].log()),
            trace=replace(drawn.trace, per_row={"tokens": actions}),
            exact=False,
        )


def scores(samples: Any) -> list[float]:
    return [(0.3, -1.0, 2.0)[int(s.output)] for s in samples]


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_a_biased_sampler_gives_the_true_gradient(per: Any) -> None:
    """Every draw in its exact share, so the gradient is an expectation: that of the reward under the policy itself."""

    def step(correction: Correction | None) -> torch.Tensor:
        policy = Biased()
        trainer = Trainer(
            policy, [scores], ["5"], prompts_per_step=1, group_size=4, advantage=lambda rewards, w, g: rewards[:, 0],
            correction=correction, max_grad_norm=None, max_logprob_diff=10, device="cpu",
        )  # fmt: skip
        seen: list[torch.Tensor] = []
        trainer.updates.optimizer.register_step_pre_hook(
            lambda *_: seen.append(torch.cat([p.grad.flatten() for p in policy.net.parameters()]))
        )
        trainer.step()
        return seen[0]

    policy = Biased()
    place = torch.zeros(1, 1, dtype=torch.int64)
    probabilities = policy.logits(place + 5, place, place).softmax(-1).flatten()
    (-(probabilities * torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)).sum()).backward()
    truth = torch.cat([p.grad.flatten() for p in policy.net.parameters()])
    uncapped = step(Correction(per=per, high=1e6))
    assert (uncapped - truth).norm() < 1e-12 * truth.norm()
    assert (step(None) - truth).norm() > 0.1 * truth.norm()


class Inexact(TinyTokens):
    """Its sampler states log-probs that are too high by 0.01 and 0.03 in turn."""

    def rollout(self, prompts: Any, group_size: int, **options: Any) -> Rollout:
        drawn = super().rollout(prompts, group_size, **options)
        off = torch.tensor([0.01, 0.03, 0.01, 0.03, 0.01, 0.03, 0.01])
        return replace(drawn, old=Decisions(logprobs=drawn.old.logprobs + off), exact=False)


def train(policy: TinyTokens, **options: Any) -> Trainer:
    return Trainer(policy, [digit_sum], PROMPTS, device="cpu", **options)


@pytest.mark.parametrize("updates", [1, 2])
def test_the_old_log_probs_of_another_sampler_come_from_training(updates: int) -> None:
    report = train(Inexact(), updates_per_rollout=updates, learning_rate=1e-9).step()
    metrics, mask = report.metrics, report.rollout.mask
    assert (metrics["ratio/min"], metrics["ratio/max"]) == pytest.approx((1, 1), abs=1e-6)
    off = torch.tensor([0.01, 0.03, 0.01, 0.03, 0.01, 0.03, 0.01], dtype=torch.float64).expand(mask.shape)[mask]
    assert metrics["logprob_diff/signed_mean"] == pytest.approx(-float(off.mean()), rel=1e-4)
    assert metrics["logprob_diff/mean"] == pytest.approx(float(off.mean()), rel=1e-4)
    assert metrics["logprob_diff/max"] == pytest.approx(0.03, rel=1e-4)
    weights = (-off).exp()
    assert metrics["logprob_diff/ess"] == pytest.approx(float(weights.mean() ** 2 / weights.square().mean()), rel=1e-6)
    with pytest.raises(RunError, match="logprobs"):  # the same difference in a sampler that is said to be exact
        train(Claims()).step()


class Claims(Inexact):
    def rollout(self, prompts: Any, group_size: int, **options: Any) -> Rollout:
        return replace(super().rollout(prompts, group_size, **options), exact=True)


def test_weights_of_sequences_need_no_sequences_in_one_slice() -> None:
    def weights(**options: Any) -> torch.Tensor:
        policy = Inexact(**options)
        train(policy, correction=Correction(per="sequence", high=1.001), learning_rate=1e-2).step()
        return torch.cat([p.detach().flatten() for p in policy.net.parameters()])

    whole, sliced = weights(dtype=torch.float64), weights(dtype=torch.float64, slices=3)
    torch.testing.assert_close(whole, sliced, rtol=0, atol=1e-9)


class Late(TinyTokens):
    """Draws with the weights of some updates ago, as an engine that lags behind."""

    def __init__(self, lag: int) -> None:
        super().__init__()
        self.lag, self.version = lag, 0
        self.states = [self.weights()]

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: x.clone() for name, x in self.net.state_dict().items()}

    def updated(self, version: int) -> None:
        self.version = version
        self.states.append(self.weights())

    def rollout(self, prompts: Any, group_size: int, **options: Any) -> Rollout:
        now, drawn_with = self.weights(), max(0, self.version - self.lag)
        self.net.load_state_dict(self.states[drawn_with])
        drawn = super().rollout(prompts, group_size, **options)
        self.net.load_state_dict(now)
        return replace(drawn, version=drawn_with)


def test_a_rollout_of_older_weights_is_weighted_and_not_taken_for_a_fault() -> None:
    trainer = train(Late(lag=1), max_policy_lag=1, correction=Correction(), learning_rate=1e-2)
    first, second = (trainer.step().metrics for _ in range(2))
    assert first["logprob_diff/max"] < 1e-5
    assert second["logprob_diff/max"] > 1e-3  # far above the limit of a sampler with these weights
    assert (second["ratio/min"], second["ratio/max"]) == (1, 1)
    assert 0.9 < second["logprob_diff/ess"] < first["logprob_diff/ess"] <= 1


def test_a_rollout_that_is_too_old_is_refused() -> None:
    trainer = train(Late(lag=2), max_policy_lag=1)
    trainer.step()
    trainer.step()
    with pytest.raises(RunError, match=r"of version 0, and the policy has version 2 .*trainer\.max_policy_lag=1"):
        trainer.step()


class Uneven(TinyTokens):
    """Draws its first call exactly and with the weights of now, and each further one as an engine with older ones."""

    calls = 0

    def rollout(self, prompts: Any, group_size: int, **options: Any) -> Rollout:
        self.calls += 1
        first = self.calls == 1
        drawn = super().rollout(prompts, group_size, **options)
        return replace(drawn, exact=first, version=7 if first else 5)


class OneOfTwo(Team):
    """Another process, whose draws are not exact and of older weights, tells so; its rows stay there."""

    size = 2

    def share(self, count: int) -> range:
        return range(count)

    def gather(self, value: Any) -> list[Any]:
        if isinstance(value, tuple) and isinstance(value[-1], Rollout):
            return [value, (torch.zeros(0), torch.zeros(0), 0, [], replace(value[-1], exact=False, version=5))]
        return [value]


@pytest.mark.parametrize("parts", ["calls", "attempts", "processes"])
def test_one_part_that_is_older_or_not_exact_makes_the_whole_so(parts: str) -> None:
    sizes: dict[str, Any] = {"calls": {"rollout_batch_size": 8}, "attempts": {"dynamic_sampling": 1}}.get(parts, {})
    policy = Uneven()

    def flat_at_first(samples: Any) -> list[float]:
        """Without spread in the first group, where groups may be drawn again."""
        return [
            0.0 if s.group == samples[0].group else score for s, score in zip(samples, digit_sum(samples), strict=True)
        ]

    trainer = Trainer(
        policy, [flat_at_first], PROMPTS, prompts_per_step=4, group_size=4, max_policy_lag=2, device="cpu", **sizes
    )
    trainer.version = 7
    if parts == "processes":
        trainer._rollouts.team = OneOfTwo()
    rollout = trainer.step().rollout
    assert policy.calls == (1 if parts == "processes" else 2)
    assert (rollout.exact, rollout.version) == (False, 5)
