"""Code of a plugin that forks: the copy ends where that code ends, and takes no part in the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from grpokit import Pending, Portion, Prompt, Rollout, Sample, Trainer
from grpokit.rewards.scoring import score
from grpokit.rewards.terms import RewardTerm
from tiny_policies import TinyTokens, digit_sum

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
SAMPLES = [Sample(prompt=Prompt(text="p"), output=str(i), group=0) for i in range(3)]


def returns(samples: Sequence[Sample]) -> list[float]:
    os.fork()
    return [float(s.output) for s in samples]


def raises(samples: Sequence[Sample]) -> list[float]:
    if os.fork() == 0:
        raise SystemExit(1)
    return [float(s.output) for s in samples]


class Elsewhere:
    def submit(self, samples: Sequence[Sample]) -> Pending:
        os.fork()
        answer: Future[Portion] = Future()
        answer.set_result(Portion(rows=range(len(samples)), values=[0.0] * len(samples)))
        return Pending([answer])

    def close(self) -> None: ...


class ForkingPolicy(TinyTokens):
    """As an environment may do whose rollouts run in processes."""

    def rollout(self, *arguments: Any, **options: Any) -> Rollout:
        os.fork()
        return super().rollout(*arguments, **options)


def step(policy: TinyTokens) -> None:
    Trainer(policy, [digit_sum], ["1"], prompts_per_step=1, group_size=2, device="cpu").step()


@pytest.mark.parametrize(
    "work",
    [
        lambda: score([RewardTerm(name="r", reward=returns)], SAMPLES),
        lambda: score([RewardTerm(name="r", reward=raises)], SAMPLES),
        lambda: score([RewardTerm(name="r", reward=Elsewhere())], SAMPLES),
        lambda: step(ForkingPolicy()),
    ],
    ids=["reward", "reward-that-raises", "reward-elsewhere", "policy"],
)
def test_the_copy_ends(work: Callable[[], Any]) -> None:
    process = os.getpid()
    try:
        work()
    finally:
        if os.getpid() != process:
            os._exit(9)  # or it would go on with the tests
    _, status = os.wait()
    assert os.waitstatus_to_exitcode(status) == 0
