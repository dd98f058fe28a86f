"""The conformance kit: every check bites, and only where it should; both fronts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import broken_components as broken
from grpokit import Prompt, RewardSpec, Sample, UsageError, registry
from grpokit.testing import (
    Check,
    CheckError,
    example_samples,
    outcomes,
    parametrize_with_checks,
    policy_checks,
    reward_checks,
)
from test_cli import Call, call  # noqa: F401  (a fixture)
from tiny_policies import TinyGaussian

PROMPTS = ["1", "2", "3"]
WORDS = ["banana", "cat", "a", "dog", "aa b"]
SPEC = RewardSpec(name="letters", factory="broken_components:good", accepts={"text"}, range=(0, 1))


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def samples() -> list[Sample]:
    return [Sample(prompt=Prompt(text=w), output=w, group=i // 2) for i, w in enumerate(WORDS)]


def hooks(factory: Any) -> dict[str, Any]:
    gaussian = isinstance(factory, type) and issubclass(factory, TinyGaussian)
    return {"decisions": broken.decisions} if gaussian else {"decode": broken.decode}


def failed(checks: Any) -> dict[str, str]:
    return {o.name: o.message for o in outcomes(checks) if not o.ok}


@parametrize_with_checks(policy_checks(broken.Tokens, PROMPTS, decode=broken.decode, params={"seed": 1}))
def test_a_good_policy_of_tokens(check: Check) -> None:
    check()


@parametrize_with_checks(policy_checks(TinyGaussian, PROMPTS, decisions=broken.decisions))
def test_a_good_policy_of_gaussian_steps(check: Check) -> None:
    check()


@parametrize_with_checks(reward_checks(broken.good, samples(), spec=SPEC, params={"x": [1]}, module="tiny_policies"))
def test_a_good_reward(check: Check) -> None:
    if check.name != "light-plugin":  # tiny_policies imports torch
        check()


@pytest.mark.parametrize(("factory", "caught"), broken.POLICIES, ids=[f.__name__ for f, _ in broken.POLICIES])
def test_only_the_right_check_catches_a_broken_policy(factory: Callable[[], Any], caught: set[str]) -> None:
    found = failed(policy_checks(factory, PROMPTS, **hooks(factory)))
    assert set(found) == caught, found
    assert all(re.match(r"Expected .*; got .*\. Usual cause: .*\.$", m, re.DOTALL) for m in found.values()), found


@pytest.mark.parametrize("factory", [broken.OutputsShifted, broken.OutputsOfThePrompt])
def test_mixed_up_outputs_are_caught_without_decode(factory: Callable[[], Any]) -> None:
    assert set(failed(policy_checks(factory, PROMPTS))) == {"scored-is-sampled"}


@pytest.mark.parametrize("factory", [broken.AnotherStd, broken.SummedDensity])
def test_a_wrong_density_is_caught_without_the_decisions(factory: Callable[[], Any]) -> None:
    assert set(failed(policy_checks(factory, PROMPTS))) == {"gaussian"}


def test_only_learning_shows_a_gradient_of_the_wrong_sign() -> None:
    options = {"learn": True, "learn_steps": 10, "learning_rate": 1e-2}
    assert not failed(c for c in policy_checks(broken.Tokens, PROMPTS, **options) if c.slow)
    assert set(failed(policy_checks(broken.WrongSign, PROMPTS, **options))) == {"learns"}


@pytest.mark.parametrize(("make", "caught"), broken.REWARDS)
def test_only_the_right_check_catches_a_broken_reward(make: Callable[[], Any], caught: set[str]) -> None:
    found = failed(reward_checks(make(), samples(), spec=SPEC))
    assert set(found) == caught, found
    assert all(re.match(r"Expected .*; got .*\. Usual cause: .*\.$", m, re.DOTALL) for m in found.values()), found


def test_every_check_has_a_component_that_it_alone_catches() -> None:
    alone = {next(iter(caught)) for _, caught in [*broken.POLICIES, *broken.REWARDS] if len(caught) == 1}
    names = {c.name for c in policy_checks(broken.Tokens, PROMPTS, learn=True)}
    names |= {c.name for c in reward_checks(broken.good, samples(), spec=SPEC)}
    assert names - alone == {"protocol", "learns"}  # a method that is missing fails its own check too; the test above


@pytest.mark.parametrize("value", [{1, 2}, (1, 2), float("nan"), object()])
def test_parameters_that_json_cannot_hold(value: Any) -> None:
    assert set(failed(reward_checks(broken.good, samples(), params={"size": value}))) == {"parameters"}


def test_a_heavy_plugin_module() -> None:
    checks = list(reward_checks(broken.good, samples(), module="tiny_policies"))
    assert "got torch. Usual" in failed(checks)["light-plugin"]
    assert not failed(reward_checks(broken.good, samples(), module="grpokit.builtin.plugin"))


def test_a_reward_that_scores_nothing_or_the_wrong_number() -> None:
    assert "NaN for all 5" in failed(reward_checks(lambda s: [float("nan")] * len(s), samples()))["numbers"]
    found = failed(reward_checks(lambda s: [1.0], samples()))
    assert "returned 1 scores for 5 samples" in found["numbers"]


def test_a_reward_of_whole_groups() -> None:
    def above_the_group(batch: Any) -> list[float]:
        scores = broken.good(batch)
        means = {g: [x for x, s in zip(scores, batch, strict=True) if s.group == g] for g in {s.group for s in batch}}
        return [x - sum(means[s.group]) / len(means[s.group]) for x, s in zip(scores, batch, strict=True)]

    assert set(failed(reward_checks(above_the_group, samples()))) == {"batch-size"}
    assert not failed(reward_checks(above_the_group, samples(), per_sample=False))


def test_an_error_of_a_component_is_a_failure_and_random_states_are_kept() -> None:
    def broken_down() -> None:
        torch.manual_seed(0)
        raise ZeroDivisionError("oh")

    before = torch.random.get_rng_state()
    with pytest.raises(CheckError, match=r"^x: Expected that y; got ZeroDivisionError: oh\. Usual cause"):
        Check(name="x", summary="y", test=broken_down)()
    assert torch.equal(before, torch.random.get_rng_state())


def test_too_little_to_check_with() -> None:
    with pytest.raises(UsageError, match="at least two prompts"):
        list(policy_checks(broken.Tokens, ["1"]))
    with pytest.raises(UsageError, match="at least two groups"):
        list(reward_checks(broken.good, samples()[:2]))
    with pytest.raises(UsageError, match="no example samples of sound"):
        example_samples({"sound"})


@pytest.mark.parametrize(
    ("name", "params"),
    [("exact-match", {}), ("contains", {}), ("numeric-answer", {}), ("length", {"maximum": 5})],
)
def test_built_in_rewards(name: str, params: dict[str, Any]) -> None:
    spec = registry.find("reward", name)[1]
    assert isinstance(spec, RewardSpec)
    reward = registry.create("reward", name, params)
    assert not failed(reward_checks(reward, example_samples({"text"}), spec=spec, params=params))


def test_names_are_light() -> None:
    code = "import sys, grpokit.testing, grpokit.testing.core; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_command_on_a_policy(call: Call) -> None:  # noqa: F811
    words = ("check", "broken_components:Tokens", "seed=3", "--prompt", "1", "--prompt", "2")
    done = call(*words)
    assert done.code == 0, done.out + done.err
    assert "all 18 checks" in done.out  # with the parameters
    done = call("check", "broken_components:SlicesOverlap", "--prompt", "1", "--prompt", "2")
    assert done.code == 1
    assert re.search(r"slices +failed +Expected a slice that begins at 4; got slice\(3, 7", done.out)
    assert "1 of 17 checks failed" in done.out


@pytest.mark.parametrize("name", ["toy-lm", "ssim", "format", "length", "broken_components:good"])
def test_the_command_on_what_is_shipped(call: Call, name: str) -> None:  # noqa: F811
    done = call("check", name)
    assert done.code == 0, done.out + done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["toy-ml"], "no policy or reward called 'toy-ml' (did you mean 'toy-lm'?)"),
        (["toy-lm", "temprature=1"], "no parameter 'temprature' (did you mean 'temperature'?)"),
        (["toy-lm", "temperature"], "Expected a parameter as key=value, got 'temperature'"),
        (["toy-lm", "--kind", "policies"], "--kind must be policy or reward"),
        (["toy-lm", "--prompt", "hello", "--prompt", "you"], "toy-lm reads sums"),
        (["toy-lm", "--prompt", "1+1"], "at least two prompts"),
        (["toy-lm", "--prompt", "1+1", "--prompts", "x.txt"], "either --prompt or --prompts"),
        (["toy-lm", "--prompts", "x.txt"], "x.txt"),
        (["ssim", "--prompt", "hello"], "is a reward, which reads no prompts"),
        (["tiny_policies:TinyTokens"], "No preset uses the policy 'tiny_policies:TinyTokens'"),
        (["no.such:thing"], "needs the Python module 'no'"),
    ],
)
def test_bad_input_of_the_command(call: Call, words: list[str], said: str) -> None:  # noqa: F811
    done = call("check", *words)
    assert done.code == 2, done.out
    assert said in done.err
    assert "Traceback" not in done.err
