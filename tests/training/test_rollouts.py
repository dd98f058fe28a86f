"""Samples of the next step are drawn in an engine while this step learns."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grpokit import Phase, PhasedTrainer, Prompt, Rollout, RunError, Seeds, Trainer
from grpokit.training.updates import Updates
from tiny_policies import TinyTokens, digit_sum


class Engine(TinyTokens):
    """A copy of the net draws in a thread."""

    def __init__(self, before: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self.threads, self.before, self.version = ThreadPoolExecutor(1), before, 0
        self.begun: list[Future[Rollout]] = []
        self.drawn_here = 0

    def updated(self, version: int) -> None:
        self.version = version

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        self.drawn_here += 1
        self.before()
        return super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)

    def begin(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds) -> Future[Rollout]:
        there, version = TinyTokens(), self.version
        there.net = copy.deepcopy(self.net)

        def draw() -> Rollout:
            self.before()
            with torch.no_grad():
                return replace(there.rollout(prompts, group_size, seeds=seeds), version=version)

        self.begun.append(self.threads.submit(draw))
        return self.begun[-1]


def make(policy: TinyTokens, **options: Any) -> Trainer:
    settings = {"prompts_per_step": 4, "group_size": 4, "learning_rate": 0.02, "device": "cpu", **options}
    return Trainer(policy, [digit_sum], [str(i) for i in range(12)], **settings)


def versions(trainer: Trainer, steps: int) -> list[int | None]:
    return [trainer.step().rollout.version for _ in range(steps)]


def weights(trainer: Trainer) -> list[float]:
    return torch.nn.utils.parameters_to_vector(trainer.policy.modules()["net"].parameters()).tolist()


@pytest.mark.parametrize(("max_policy_lag", "minibatches", "expected"), [
    (0, 1, [0, 1, 2, 3]), (1, 1, [0, 0, 1, 2]), (1, 2, [0, 2, 4, 6]), (2, 2, [0, 0, 2, 4]),
])  # fmt: skip
def test_how_old_the_weights_are(max_policy_lag: int, minibatches: int, expected: list[int]) -> None:
    policy = Engine()
    trainer = make(policy, max_policy_lag=max_policy_lag, minibatches=minibatches, steps=4)
    assert versions(trainer, 4) == expected
    ahead = max_policy_lag >= minibatches
    assert (policy.drawn_here, len(policy.begun)) == ((1, 3) if ahead else (4, 0))  # none after the last step


def test_samples_are_those_that_the_older_weights_draw() -> None:
    """The second step draws with the first weights, as a step of another run with a tiny learning rate does."""
    ahead, still = make(Engine(), max_policy_lag=1, steps=2), make(TinyTokens(), learning_rate=1e-7, steps=2)
    for _ in range(2):
        outputs = [[sample.output for sample in trainer.step().rollout.samples] for trainer in (ahead, still)]
        assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_drawing_hides_behind_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a second."""
    trainer = make(Engine(lambda: time.sleep(1)), max_policy_lag=1, steps=3)
    make_update = Updates.make
    monkeypatch.setattr(Updates, "make", lambda *a, **k: (time.sleep(1), make_update(*a, **k))[1])
    assert trainer.step().metrics["step_time"] >= 2
    for _ in range(2):
        assert trainer.step().metrics["step_time"] <= 1.3


def test_a_run_that_goes_on_draws_anew(tmp_path: Path) -> None:
    trainer = make(Engine(), max_policy_lag=1, steps=4)
    versions(trainer, 2)
    trainer.save(tmp_path / "two")
    other = make(Engine(), max_policy_lag=1, steps=4)
    other.load(tmp_path / "two")
    assert versions(other, 2) == [2, 2]
    trainer.load(tmp_path / "two")  # where one is on its way
    assert versions(trainer, 2) == [2, 2]
    assert weights(trainer) == weights(other)


def test_a_failed_step_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Engine()
    trainer = make(policy, max_policy_lag=1, steps=4)
    versions(trainer, 1)

    def fail(*_: Any, **__: Any) -> None:
        raise RunError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Updates, "make", fail)
        with pytest.raises(RunError, match="no"):
            trainer.step()
    assert versions(trainer, 2) == [1, 1]


def test_a_closed_trainer_asks_for_no_more() -> None:
    go = threading.Event()
    policy = Engine()
    policy.threads.submit(go.wait, 10)
    trainer = make(policy, max_policy_lag=1, steps=4)
    versions(trainer, 1)
    trainer.close()
    go.set()
    assert [future.cancelled() for future in policy.begun] == [True]


def test_an_error_there_ends_the_step() -> None:
    policy = Engine()
    trainer = make(policy, max_policy_lag=1, steps=4)
    versions(trainer, 1)

    def fail() -> None:
        raise RunError("The engine is gone.")

    policy.before = fail
    versions(trainer, 1)
    with pytest.raises(RunError, match=r"The engine is gone\."):
        trainer.step()
    policy.before = lambda: None
    assert versions(trainer, 1) == [2]


def test_phases_of_one_policy_draw_anew_where_the_other_has_learned() -> None:
    policy = Engine()
    first = make(policy, max_policy_lag=1, steps=2)
    second = make(policy, max_policy_lag=1, steps=2, seed=1)
    phases = [Phase(name="a", trainer=first, steps=1), Phase(name="b", trainer=second, steps=1)]
    together = PhasedTrainer(phases, rounds=2)
    assert [together.step().rollout.version for _ in range(4)] == [0, 1, 2, 3]
    together.close()
