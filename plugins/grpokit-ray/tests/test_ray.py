"""A reward in a Ray cluster: the scores of the own process, also while replicas are lost.

`ray.init` takes 5 to 35 seconds, so all of it is slow.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator

import pytest

from grpokit import PluginError, Prompt, Sample, UsageError, create
from grpokit.rewards.scoring import score_samples
from grpokit.rewards.terms import RewardTerm

pytestmark = pytest.mark.very_slow
ray = pytest.importorskip("ray")

from grpokit_ray.reward import RayReward  # noqa: E402  # only now that Ray is known to be there

PARAMS = {"maximum": 100, "scale": 0.01}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One Ray for all tests, which is not closed in between."""
    ray.init(address="local", logging_level="error", include_dashboard=False, num_cpus=2)
    yield
    ray.shutdown()


def samples_of(count: int) -> list[Sample]:
    texts = [Prompt(text=f"prompt {group}") for group in range(count // 5)]
    return [Sample(prompt=texts[i // 5], output="x" * (i % 170), group=i // 5) for i in range(count)]


def test_scores_are_those_of_the_own_process_while_replicas_are_killed() -> None:
    """1,000 samples, while one of two replicas is killed twice."""
    there = samples_of(1000)
    reward = RayReward("length", PARAMS, replicas=2)
    reward.start()
    pending = reward.submit(there)
    for _ in range(2):
        actor = reward._actors[0]
        os.kill(ray.get(actor.process.remote()), signal.SIGKILL)
        time.sleep(0.2)
    found: dict[int, float] = {}
    for portion in pending:
        assert portion.values is not None, portion
        found |= dict(zip(portion.rows, portion.values, strict=True))
    assert [found[row] for row in range(1000)] == list(create("reward", "length", PARAMS)(there))
    reward.close()


def test_a_reward_that_fails_there_fails_as_it_would_here() -> None:
    reward = RayReward("length", PARAMS, replicas=1)
    with pytest.raises(UsageError, match="Reward 'it': length scores texts, but the sample's output is a NoneType"):
        score_samples([RewardTerm(name="it", reward=reward)], [Sample(prompt=Prompt(text="p"), output=None, group=0)])
    reward.close()
    with pytest.raises(PluginError, match="lenght"):
        RayReward("lenght").start()


def test_a_cluster_without_room_is_waited_for_with_words(caplog: pytest.LogCaptureFixture) -> None:
    """Ten seconds without a word, and two more with one."""
    room = "Only 2 of 3 replicas for 'length' stand in .* needs 1 CPU and 0 GPU, and 0 of 2 CPU and 0 of 0 GPU are free"
    with pytest.raises(UsageError, match=rf"{room} there, after 12 s \(reward_timeout\)"):
        RayReward("length", PARAMS, replicas=3, timeout=12).start()
    assert re.search(rf"{room} there; waiting for up to 12 s", caplog.text)


def test_processes_do_not_hand_out_the_same_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="Start one with `ray start --head`, and give address: auto"):
        RayReward("length", PARAMS, gpus=0.25).start()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 0}, "replicas is 0; expected 1 or more"),
        ({"gpus": 1.5}, "gpus is 1.5; expected a share"),
        ({"pip": "torch"}, "pip is 'torch'; expected a list"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RayReward("length", PARAMS, **options)
