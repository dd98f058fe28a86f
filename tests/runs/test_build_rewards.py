"""`placement` in a config: the place that it names, or one clear message."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from distributions import announcing, distribution
from grpokit import Pending, PluginError, PooledReward, Prompt, Sample, UsageError
from grpokit.config import presets
from grpokit.rewards.terms import RewardTerm
from grpokit.runs import build, build_rewards


class Mirror(PooledReward):
    """A place of a test's own: worker processes under another name."""


def mirror(use: str, params: Mapping[str, Any], timeout: float, *, copies: int = 1) -> Mirror:
    return Mirror(use, params, workers=copies, timeout=timeout)


def wrong(use: str, params: Mapping[str, Any], timeout: float) -> str:
    return "nowhere"


def reward_at(place: str) -> Any:
    """The reward that is built with a placement."""
    config, _ = presets.read_config(
        "toy-lm", [f"rewards=[{{use: length, maximum: 3, scale: 0.5, placement: {place}}}]"]
    )
    (term,) = build_rewards.rewards(config)
    return term.reward


def test_a_place_of_a_plugin_s_own() -> None:
    reward = reward_at(f"{{'{__name__}:mirror': {{copies: 2}}}}")
    assert isinstance(reward, Mirror)
    assert (reward.workers, reward.timeout) == (2, 600.0)
    samples: Sequence[Sample] = [Sample(prompt=Prompt(text="p"), output="abcd", group=0)]
    pending = reward.submit(samples)
    assert isinstance(pending, Pending)
    assert [list(portion.values) for portion in pending] == [reward_of("abcd")]
    reward.close()


def reward_of(text: str) -> list[float]:
    (term,) = build_rewards.rewards(
        presets.read_config("toy-lm", ["rewards=[{use: length, maximum: 3, scale: 0.5}]"])[0]
    )  # in the own process
    return list(term.reward([Sample(prompt=Prompt(text="p"), output=text, group=0)]))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("{htp: 'http://a:1'}", r"There is no placement called 'htp' \(did you mean 'http'\?\)"),
        ("{http: 'gpu-2'}", "http must be an address such as http://gpu-2:8009, got 'gpu-2'"),
        ("{http: 5}", "urls must be a text, or a list of texts, got 5"),
        ("{http: {ports: 3}}", "'ports'"),
        (f"{{'{__name__}:mirror': 3}}", "is 3; expected its options"),
        (f"{{'{__name__}:mirror': {{replicas: 3}}}}", "'replicas'"),
        (f"{{'{__name__}:wrong': {{}}}}", "expected a grpokit.Submits"),
    ],
)
def test_a_place_that_cannot_be_is_one_message(place: str, message: str) -> None:
    with pytest.raises((UsageError, PluginError), match=message):
        reward_at(place)


@pytest.mark.parametrize("place", ["{}", "{http: 'http://a:1', ray: {}}"])
def test_a_reward_has_one_place(place: str) -> None:
    with pytest.raises(UsageError, match="placement names one place"):
        reward_at(place)


def test_what_a_reward_imports_may_be_at_its_usual_place_alone(site: Path) -> None:
    spec = "api=1, name='far', factory='no_such_module:score', accepts={'text'}, placement={'capsule': {}}"
    distribution(site, "far-rewards", "far", announcing("Reward", spec))
    for reward in ("{use: far, much: 3}", "{use: far, much: 3, placement: {capsule: {gpu: 1}}}"):
        config, _ = presets.read_config("toy-lm", [f"rewards=[{reward}]"])
        build.check_components(config)


def test_without_ray_its_place_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PluginError, match=r"pip install 'grpokit\[ray\]'"):
        reward_at("{ray: {replicas: 2}}")


class Scorer:
    """A reward of the run's own process, with an attribute that means something else."""

    versions = ("a", "b")

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        return [1.0] * len(samples)


def test_what_has_no_place_of_its_own_tells_no_versions() -> None:
    assert build_rewards.versions_elsewhere([RewardTerm(name="r", reward=Scorer())], {}) == {}
