"""Rewards that score elsewhere are at work while the policy scores its decisions, and are let go when that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from grpokit import Pending, Portion, RunError, Sample, Trainer
from grpokit.objectives import GRPO
from tiny_policies import TinyTokens, digit_sum


class Elsewhere:
    """`digit_sum` in a thread, one portion after the other."""

    def __init__(self, before: Callable[[], Any] = lambda: None) -> None:
        self.pool, self.before = ThreadPoolExecutor(1), before
        self.futures: list[Future[Portion]] = []

    def submit(self, samples: Sequence[Sample]) -> Pending:
        def portion(rows: range) -> Portion:
            self.before()
            return Portion(rows=rows, values=digit_sum([samples[row] for row in rows]))

        middle = len(samples) // 2
        parts = range(middle), range(middle, len(samples))
        self.futures += [self.pool.submit(portion, rows) for rows in parts]
        return Pending(self.futures[-2:])

    def close(self) -> None:
        self.pool.shutdown()


class Slow(TinyTokens):
    """The reference takes its time."""

    def __init__(self, before: Callable[[], Any]) -> None:
        super().__init__()
        self.before, self.referred = before, False

    @contextmanager
    def reference(self) -> Iterator[None]:
        with super().reference():
            self.referred = True
            yield
            self.referred = False

    def logprobs(self, rollout: Any, steps: slice) -> Any:
        if self.referred and rollout.rows > 1:  # not the probe of the first step
            self.before()
        return super().logprobs(rollout, steps)


def make(policy: TinyTokens, reward: Any, **options: Any) -> Trainer:
    settings = {"prompts_per_step": 4, "group_size": 4, "learning_rate": 0.02, "device": "cpu", **options}
    return Trainer(policy, {"it": reward}, [str(i) for i in range(12)], objective=GRPO(kl_coef=0.1), **settings)


@pytest.mark.parametrize("options", [{}, {"dynamic_sampling": 2}])
def test_scores_that_come_later_are_the_same(options: dict[str, Any]) -> None:
    reward = Elsewhere()
    found = []
    for trainer in (make(TinyTokens(), digit_sum, **options), make(TinyTokens(), reward, **options)):
        reports = [trainer.step() for _ in range(3)]
        weights = torch.nn.utils.parameters_to_vector(trainer.policy.net.parameters()).tolist()
        numbers = [
            {k: v for k, v in r.metrics.items() if "time" not in k and "seconds" not in k and "memory" not in k}
            for r in reports
        ]
        found.append((weights, numbers))
    reward.close()
    assert repr(found[0]) == repr(found[1])


def test_a_slow_reward_hides_behind_the_reference() -> None:
    """Each takes a second: two portions, and two micro-batches."""
    policy, reward = Slow(lambda: time.sleep(0.5)), Elsewhere(lambda: time.sleep(0.5))
    trainer = make(policy, reward)
    report = trainer.step()
    reward.close()
    assert report.metrics["time/logprobs"] >= 0.95
    assert report.metrics["rewards/it/seconds"] >= 0.95  # the threads begin a moment before the clock
    assert report.metrics["step_time"] <= 1.3


def test_an_error_before_the_scores_are_needed_cancels_the_reward() -> None:
    go, at_work = threading.Event(), threading.Event()

    def wait() -> None:
        at_work.set()
        go.wait(10)

    def fail() -> None:
        at_work.wait(10)
        raise RunError("the reference is gone")

    reward = Elsewhere(wait)
    trainer = make(Slow(fail), reward)
    with pytest.raises(RunError, match="the reference is gone"):
        trainer.step()
    go.set()
    reward.close()
    assert reward.futures[1].cancelled()
    assert trainer.completed == 0
