"""What a policy hears: which work begins and ends, and that its weights are new."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grpokit import Decisions, Rollout, RunError, Trainer, evaluate, frozen_copy, objectives
from grpokit.builtin.entropy_filter import EntropyFilter
from grpokit.policy import Work
from grpokit.training.minibatches import minibatch_rows
from tiny_policies import TinyGaussian, TinyTokens, digit_sum, nearness

PROMPTS = [str(i) for i in range(12)]


class Hears(TinyTokens):
    """Keeps what it hears, and the work in which it draws and scores."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.heard: list[str] = []
        self.now = "nothing"

    @contextmanager
    def during(self, work: Work) -> Iterator[None]:
        assert self.now == "nothing"  # no stretch inside another
        self.now = work
        self.heard.append(work)
        try:
            yield
        finally:
            self.now = "nothing"

    def updated(self, version: int) -> None:
        self.heard.append(f"{self.now} {version}")

    def rollout(self, *args: Any, **kwargs: Any) -> Rollout:
        assert self.now == "rollout"
        return super().rollout(*args, **kwargs)

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        assert self.now == ("train" if torch.is_grad_enabled() else "score")
        return super().logprobs(rollout, steps)


class HearsGaussian(TinyGaussian):
    heard: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.heard, self.now = [], "nothing"

    during, updated = Hears.during, Hears.updated


def trainer(policy: TinyTokens, **options: Any) -> Trainer:
    objective = options.pop("objective", objectives.GRPO(kl_coef=0.1))
    return Trainer(
        policy, [options.pop("reward", digit_sum)], PROMPTS, objective=objective, learning_rate=1e-2,
        rollout_batch_size=16, updates_per_rollout=options.pop("updates_per_rollout", 2), device="cpu", **options,
    )  # fmt: skip


def test_every_stretch_of_work_is_announced_once(tmp_path: Path) -> None:
    policy = Hears()
    training = trainer(policy)
    training.step()
    step = ["rollout", "score", "train", "train 1", "train 2"]
    assert policy.heard == [*step, "score"]  # the last one checks the reference after the first step
    policy.heard.clear()
    training.step()
    assert policy.heard == ["rollout", "score", "train", "train 3", "train 4"]
    policy.heard.clear()
    evaluate(policy, [digit_sum], PROMPTS, batch_size=4)
    assert policy.heard == ["rollout"]
    training.save(tmp_path / "here")
    policy.heard.clear()
    training.load(tmp_path / "here")
    assert policy.heard == ["nothing 4", "score"]


def test_no_work_is_announced_that_is_not_done() -> None:
    policy = Hears()
    trainer(policy, objective=objectives.GRPO()).step()
    assert policy.heard == ["rollout", "train", "train 1", "train 2"]
    steps = HearsGaussian()
    exact = objectives.GRPO(kl="gaussian", kl_coef=0.1)
    training = trainer(steps, objective=exact, reward=nearness, updates_per_rollout=1)
    training.step()
    steps.heard.clear()
    training.step()  # one pass over the rollout: the reference's means are found beside each slice
    assert steps.heard == ["rollout", "train", "train 2"]


def test_the_pass_for_an_entropy_filter_is_scoring() -> None:
    policy = Hears()
    trainer(policy, objective=objectives.GRPO(), modifiers=[EntropyFilter()]).step()
    assert policy.heard == ["rollout", "score", "train", "train 1", "train 2"]


def test_versions_go_on_after_a_step_that_failed(tmp_path: Path) -> None:
    """The weights of its updates are kept, so another rollout must not pass for one of theirs."""

    class FailsLate(Hears):
        def updated(self, version: int) -> None:
            super().updated(version)
            if version == 3 and self.heard[-1] == "train 3":
                raise ValueError("an engine that is gone")

    policy = FailsLate()
    training = trainer(policy, objective=objectives.GRPO())
    training.step()
    with pytest.raises(ValueError, match="gone"):
        training.step()
    training.save(tmp_path / "here")
    training.load(tmp_path / "here")
    training.step()
    assert policy.heard[-5:] == ["nothing 3", "rollout", "train", "train 4", "train 5"]


class FirstMinibatchCut(Hears):
    """All completions of the first minibatch were cut, and are masked; on request others are scored wrongly."""

    shift = 0.0

    def rollout(self, *args: Any, **kwargs: Any) -> Rollout:
        rollout = super().rollout(*args, **kwargs)
        mask = rollout.mask.clone()
        mask[minibatch_rows(rollout.groups, 2, key=(0, int(rollout.groups[0]) // 2, 0))[0]] = False
        return replace(rollout, mask=mask)

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        view = super().logprobs(rollout, steps)
        return replace(view, logprobs=view.logprobs + self.shift)


def halves(policy: TinyTokens, **options: Any) -> Trainer:
    sizes = {"prompts_per_step": 2, "minibatches": 2, "seed": 0, "learning_rate": 1e-2, "steps": 4}
    return Trainer(policy, [digit_sum], PROMPTS, device="cpu", **sizes, **options)


def test_a_minibatch_without_decisions_is_no_update() -> None:
    policy = FirstMinibatchCut()
    training = halves(policy, schedule="cosine")
    rates: list[float] = []
    training.updates.optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
    reports = [training.step() for _ in range(2)]
    assert policy.heard == ["rollout", "train", "train 1", "rollout", "train", "train 2"]
    assert training.version == 2
    assert rates == [training.updates.rate(1), training.updates.rate(3)]  # the schedule counts all minibatches
    assert all(report.metrics["logprob_diff/ess"] == pytest.approx(1) for report in reports)
    assert all(len(report.warnings) == 1 for report in reports)
    policy.shift = 0.5  # no weight has changed before the second minibatch, so it must have the rollout's log-probs
    with pytest.raises(RunError, match="log-probs"):
        training.step()


def test_a_reference_that_moves_stays_where_no_weight_has_changed() -> None:
    class Moves(FirstMinibatchCut, Averaged):
        def updated(self, version: int) -> None:
            Hears.updated(self, version)
            Averaged.updated(self, version)

    policy = Moves()
    training = halves(policy, objective=objectives.GRPO(kl_coef=0.1))
    training.step()
    before = [p.clone() for p in policy.frozen.parameters()]
    training.step()
    after = [torch.lerp(p, q, 0.5) for p, q in zip(before, policy.net.parameters(), strict=True)]
    assert all(torch.equal(p, q) for p, q in zip(policy.frozen.parameters(), after, strict=True))


def test_an_update_that_a_loss_scaler_skips_changes_no_version() -> None:
    """Of fp16 training, which needs a GPU; the scaler itself runs anywhere."""
    policy = Hears()
    training = halves(policy)
    training.updates.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    overflow = training.updates.parameters[0].register_hook(lambda gradient: gradient * float("inf"))
    training.step()
    assert (policy.heard, training.version) == (["rollout", "train"], 0)
    assert training.updates.scaler.get_scale() == 1  # a half after each of two updates
    overflow.remove()
    training.step()
    assert (policy.heard[2:], training.version) == (["rollout", "train", "train 1", "train 2"], 2)


class Averaged(TinyTokens):
    """Its reference is a moving average of its weights."""

    reference_moves = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.frozen, self.version = frozen_copy(self.net), 0

    def updated(self, version: int) -> None:
        if version > self.version:
            with torch.no_grad():
                for mean, p in zip(self.frozen.parameters(), self.net.parameters(), strict=True):
                    mean.lerp_(p, 0.5)
        self.version = version

    def state_dict(self) -> Any:
        mean = {f"mean/{name}": x for name, x in self.frozen.state_dict().items()}
        return {**super().state_dict(), **mean, "version": self.version}

    def load_state_dict(self, state: Any) -> None:
        own = {name: x for name, x in state.items() if name != "version" and not name.startswith("mean/")}
        super().load_state_dict(own)
        self.version = state["version"]
        self.frozen.load_state_dict({n.removeprefix("mean/"): x for n, x in state.items() if n.startswith("mean/")})


def test_a_reference_that_moves_is_resumed_to_the_bit(tmp_path: Path) -> None:
    through = Averaged()
    training = trainer(through)
    for _ in range(2):
        training.step()
    training.save(tmp_path / "step_2")
    for _ in range(2):
        last = training.step().metrics
    resumed = Averaged(seed=1)
    training = trainer(resumed)
    training.load(tmp_path / "step_2")
    for _ in range(2):
        again = training.step().metrics
    assert last["kl"] == again["kl"] > 0
    for one, other in ((through.net, resumed.net), (through.frozen, resumed.frozen)):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_reference_that_moves_unannounced_is_an_error() -> None:
    class Unannounced(Averaged):
        reference_moves = False

    with pytest.raises(RunError, match="The reference has changed"):
        trainer(Unannounced()).step()
