"""Each cause from evidence that has nothing else, and none from evidence of a healthy run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpokit.config import presets
from grpokit.evaluation.paired import Change
from grpokit.run_folder.reader import RunHistory
from grpokit_diagnosis.diagnosis import Diagnosis
from grpokit_diagnosis.evidence import Cause, Evidence
from grpokit_diagnosis.looks import looks
from grpokit_diagnosis.probe.arrival import Arrival
from grpokit_diagnosis.probe.gains import Gain
from grpokit_diagnosis.probe.gradients import Direction
from grpokit_diagnosis.probe.line_search import Point
from grpokit_diagnosis.probe.measure import Measured
from grpokit_diagnosis.probe.repeatability import Repeatability
from grpokit_diagnosis.probe.spread import Spread
from grpokit_diagnosis.probe.targets import TargetScore
from grpokit_diagnosis.probe.usual_values import UsualValue
from grpokit_diagnosis.symptom import Symptom

CLEAR = Direction(signal=1.0, noise=50.0, chance=0.001, groups=64)
UNCLEAR = Direction(signal=0.0, noise=50.0, chance=0.6, groups=64)
SPREAD = Spread(mean=0.5, best=0.8, inside=0.2, between=0.1, groups=64, without={})
ARRIVES = Arrival(swallowed=0.0, passed=1.0, passed_unclipped=1.0, rounded=0.0, in_16_bits=False)
SEARCH = [Point(length=x, gain=0.0, width=0.1, same_outputs=0.5) for x in (0, 0.1, 1, 10, 100)]
GAIN = Gain(before=0.5, after=0.5, width=0.02, between=0.001, within=0.01, prompts=32)
RIGHT = TargetScore(reward="ring", target=1.0, samples=0.5, preferred=0.0)
HEALTHY = Measured(
    steps=8,
    completed=0,
    step_seconds=1.0,
    cost=30.0,
    spread=SPREAD,
    targets=[RIGHT],
    repeat=Repeatability(again=0.0, jittered=0.05, wrong={8: 0.11, 16: 0.08, 32: 0.05}),
    usual_values=[],
    direction=CLEAR,
    by_reward={},
    cosines={},
    regulariser=0.2,
    clipped=1.0,
    arrival=ARRIVES,
    logprob_change=0.02,
    search=SEARCH,
    training=GAIN,
    evaluation=GAIN,
)
LOGGED = {
    "reward": 0.5,
    "reward_std": 0.2,
    "step_time": 1.0,
    "frac_reward_zero_std": 0.0,
    "clip_ratio/low_mean": 0.0,
    "clip_ratio/high_mean": 0.0,
    "logprob_diff/mean": 1e-7,
    "logprob_diff/ess": 1.0,
    "updates_swallowed": 0.0,
}


def found(
    *words: str,
    logged: dict[str, float] | None = None,
    measured: Measured | None = HEALTHY,
    course: Any = "flat",
    change: float = 0.0,
    held_out: Change | None = None,
) -> list[Cause]:
    """The causes of a run of toy-flow that has gone like this."""
    config, _ = presets.read_config("toy-flow", ["trainer.group_size=8", "trainer.steps=100", *words])
    metrics = [{"step": step, **LOGGED, **(logged or {})} for step in range(1, 101)]
    settings = {"rewards": [reward.model_dump() for reward in config.rewards]}
    run = RunHistory(folder=Path("runs/a"), config="", settings=settings, versions="", metrics=metrics, planned=100)
    symptom = Symptom(course=course, change=change, width=0.1, held_out=held_out, best=100)
    evidence = Evidence(run=run, config=config, symptom=symptom, measured=measured)
    diagnosis = Diagnosis(run=run, phase="", symptom=symptom, looks=list(looks(evidence)), measured=measured)
    return diagnosis.causes


def ids(*words: str, **how: Any) -> list[str]:
    """Their ids."""
    return [cause.id for cause in found(*words, **how)]


def test_nothing_is_said_of_a_healthy_run() -> None:
    assert ids() == []
    assert ids(measured=None) == []


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"targets": [replace(RIGHT, preferred=0.9)]}, "reward-sign"),
        ({"repeat": Repeatability(again=0.9, jittered=None, wrong={8: 0.4, 16: 0.4, 32: 0.4})}, "reward-noise"),
        ({"repeat": Repeatability(again=0.0, jittered=0.8, wrong={8: 0.4, 16: 0.4, 32: 0.4})}, "reward-noise"),
        ({"spread": replace(SPREAD, without={"all at the top": 50})}, "reward-saturated"),
        ({"spread": replace(SPREAD, without={"all at the bottom": 50})}, "prompts-too-hard"),
        ({"spread": replace(SPREAD, without={"same scores": 50})}, "reward-coarse"),
        ({"spread": replace(SPREAD, without={"same outputs": 50})}, "samples-alike"),
        ({"regulariser": 8.0}, "kl-too-strong"),
        ({"arrival": replace(ARRIVES, swallowed=0.9, passed=0.3, passed_unclipped=0.3)}, "epsilon-swallows"),
        (
            {"arrival": replace(ARRIVES, swallowed=0.9, passed=0.01, passed_unclipped=0.02), "clipped": 2.0},
            "epsilon-swallows",
        ),
        (
            {"arrival": replace(ARRIVES, swallowed=1.0, passed=0.005, passed_unclipped=0.4), "clipped": 100.0},
            "gradient-clipped",
        ),
        ({"arrival": replace(ARRIVES, rounded=0.7, in_16_bits=True)}, "weights-rounded"),
        ({"logprob_change": 0.0003}, "step-too-short"),
        ({"logprob_change": 20.0}, "step-too-long"),
        ({"search": [*SEARCH[:3], *(replace(each, gain=-0.3) for each in SEARCH[3:])]}, ""),
        ({"search": [SEARCH[0], *(replace(each, gain=-0.3) for each in SEARCH[1:])]}, "step-too-long"),
        ({"search": [replace(each, same_outputs=1.0) for each in SEARCH]}, "stale-rollouts"),
        ({"direction": UNCLEAR}, "gradient-noise"),
        ({"direction": UNCLEAR, "training": replace(GAIN, after=0.8), "evaluation": replace(GAIN, after=0.8)}, ""),
        ({"training": replace(GAIN, after=0.8)}, "evaluation-settings"),
    ],
)
def test_one_broken_link(changes: dict[str, Any], cause: str) -> None:
    assert ids(measured=replace(HEALTHY, **changes))[:1] == ([cause] if cause else [])


@pytest.mark.parametrize(
    ("logged", "cause"),
    [
        ({"logprob_diff/mean": 1.0, "logprob_diff/ess": 0.2}, "stale-rollouts"),
        ({"clip_ratio/low_mean": 0.3, "clip_ratio/high_mean": 0.3}, "clip-too-narrow"),
        ({"frac_reward_zero_std": 0.9}, "reward-coarse"),
        ({"frac_reward_zero_std": 0.9, "reward": 0.97}, "reward-saturated"),
        ({"frac_reward_zero_std": 0.9, "reward": 0.01}, "prompts-too-hard"),
        ({"updates_swallowed": 0.9}, "epsilon-swallows"),
    ],
)
def test_what_was_logged_is_enough(logged: dict[str, float], cause: str) -> None:
    assert ids(logged=logged, measured=None) == [cause]


def test_small_groups_are_named_where_signs_are_wrong() -> None:
    pairs = replace(HEALTHY, repeat=Repeatability(again=0.3, jittered=None, wrong={2: 0.31, 4: 0.24, 8: 0.2}))
    assert ids("trainer.group_size=2", measured=pairs) == ["group-too-small"]


def test_opposed_rewards() -> None:
    rewards = "rewards=[{use: ring, name: a}, {use: ring, name: b}]"
    logged = {"rewards/a/mean": 0.5, "rewards/b/mean": 0.5, "correlation/a/b": -0.9}
    (cause,) = found(rewards, logged=logged, measured=None)
    assert cause.id == "rewards-oppose"
    assert cause.overrides == ["rewards.1.weight=0"]
    agreeing = "rewards=[{use: ring, name: a}, {use: ring, name: b, weight: -1}]"
    assert ids(agreeing, logged=logged, measured=None) == []


CLIPPED = {"clip_ratio/low_mean": 0.3, "clip_ratio/high_mean": 0.2}


@pytest.mark.parametrize(
    ("objective", "overrides"),
    [
        ("{use: grpo, clip_range: 1e-6}", ["trainer.objective.clip_range=0.2"]),
        ("{use: grpo, clip_range: 0.3}", ["trainer.objective.clip_range=0.6"]),
        ("gspo", ["trainer.clip_range=0.0006", "trainer.clip_range_high=0.0008"]),
        ("cispo", []),
    ],
)
def test_a_wider_clip_range_is_one_that_the_objective_takes(objective: str, overrides: list[str]) -> None:
    words = [f"trainer={{steps: 100, group_size: 8, updates_per_rollout: 2, objective: {objective}}}"]
    (cause,) = found(*words, logged=CLIPPED, measured=None)
    assert (cause.id, cause.overrides) == ("clip-too-narrow", overrides)
    presets.read_config("toy-flow", [*words, *overrides])


def test_a_kl_that_the_objective_brings_is_lowered_there() -> None:
    strong = replace(HEALTHY, regulariser=8.0)
    nested = "trainer={steps: 100, group_size: 8, objective: {use: grpo, kl_coef: 5}}"
    (cause,) = found(nested, logged={"kl": 1e-4}, measured=strong)
    assert cause.overrides == ["trainer.objective.kl_coef=0.2"]


def test_only_what_is_drawn_ahead_is_healed_by_a_key() -> None:
    stale = {"logprob_diff/mean": 0.3, "logprob_diff/ess": 0.5}
    words = ["trainer.updates_per_rollout=1", "trainer.minibatches=4"]
    (ahead,) = found(*words, "trainer.max_policy_lag=4", logged=stale, measured=None)
    (late,) = found(*words, "trainer.max_policy_lag=40", logged=stale, measured=None)
    assert (ahead.id, ahead.overrides) == ("stale-rollouts", ["trainer.max_policy_lag=0"])
    assert (late.id, late.overrides) == ("stale-rollouts", [])


def test_groups_are_drawn_again_more_often_than_before() -> None:
    (cause,) = found("trainer.dynamic_sampling=10", logged={"frac_reward_zero_std": 0.6}, measured=None)
    assert cause.overrides == ["trainer.dynamic_sampling=11"]


def test_rewards_that_cancel_are_named_even_where_the_total_rose() -> None:
    rewards = "rewards=[{use: ring, name: a}, {use: ring, name: b}]"
    logged = {"rewards/a/mean": 0.5, "rewards/b/mean": 0.5}
    assert ids(rewards, logged={**logged, "correlation/a/b": -0.95}, course="rising") == ["rewards-oppose"]
    assert ids(rewards, logged={**logged, "correlation/a/b": -0.7}, course="rising") == []


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["trainer.warmup_steps=300"], "warm-up-too-long"),
        (["trainer.warmup_steps=100"], ""),
        (["trainer.weight_decay=3", "trainer.learning_rate=1e-2"], "weight-decay-too-strong"),
        (["trainer.weight_decay=0.01", "trainer.learning_rate=1e-2"], ""),
    ],
)
def test_what_the_config_alone_shows(words: list[str], cause: str) -> None:
    assert ids(*words, measured=None) == ([cause] if cause else [])


@pytest.mark.parametrize(("rows", "cause"), [(60, "samples-unscored"), (6, ""), (0, "")])
def test_samples_without_a_score(rows: int, cause: str) -> None:
    words = ["trainer.prompts_per_step=16"]  # 128 samples
    assert ids(*words, logged={"unscored_rows": rows}, measured=None) == ([cause] if cause else [])


def test_a_larger_step_is_advised_only_as_far_as_it_does_no_harm() -> None:
    short = {"logprob_change": 0.0003}
    harmful = [*SEARCH[:4], replace(SEARCH[4], gain=-0.5)]
    (cause,) = found(measured=replace(HEALTHY, **short, search=harmful))
    rate = presets.read_config("toy-flow", [])[0].trainer.learning_rate
    assert cause.overrides == [f"trainer.learning_rate={30 * rate:.2g}"]
    assert ids(measured=replace(HEALTHY, **short), course="unknown") == []


def test_a_reward_that_rose_in_training_and_fell_elsewhere() -> None:
    assert ids(course="apart") == ["overfitted"]
    with_other_settings = replace(HEALTHY, training=replace(GAIN, after=0.8))
    assert ids(measured=with_other_settings, course="apart") == ["evaluation-settings"]


def test_noise_so_small_that_the_start_decides() -> None:
    usual = UsualValue(key="policy.noise", own=0.05, value=0.7, spread=SPREAD, decided=0.4)
    measured = replace(HEALTHY, direction=UNCLEAR, usual_values=[usual])
    (cause,) = found("policy.noise=0.05", measured=measured)
    assert cause.id == "samples-alike"
    assert cause.overrides == ["policy.noise=0.7"]


def test_a_weak_adapter_is_named_before_the_rate() -> None:
    short = replace(HEALTHY, logprob_change=0.0003)
    config, _ = presets.read_config("lm-arithmetic", ["policy.lora={r: 16, alpha: 1}"])
    assert config.policy.params["lora"]["alpha"] == 1
    evidence = Evidence(
        run=RunHistory(folder=Path("a"), config="", settings={}, versions="", planned=60),
        config=config,
        symptom=Symptom(course="flat", change=0.0, width=0.1, held_out=None, best=0),
        measured=short,
    )
    causes = [look.cause for look in looks(evidence) if look.cause]
    assert [cause.id for cause in causes] == ["lora-too-weak"]
    assert causes[0].overrides == ["policy.lora.alpha=64", "trainer.learning_rate=0.00031"]


def test_a_run_whose_reward_rose_has_only_what_is_a_fault_all_the_same() -> None:
    assert ids(measured=replace(HEALTHY, regulariser=8.0), course="rising") == []
    assert ids(measured=replace(HEALTHY, arrival=replace(ARRIVES, rounded=0.7, in_16_bits=True)), course="rising") == [
        "weights-rounded"
    ]


def test_where_training_gained_the_evaluation_is_the_cause() -> None:
    measured = replace(HEALTHY, regulariser=8.0, training=replace(GAIN, after=0.8))
    assert ids(measured=measured, course="unseen") == ["evaluation-settings"]


@pytest.mark.parametrize(
    ("trained", "course", "cause"),
    [(0.3, "flat", "evaluation-too-small"), (0.08, "flat", ""), (0.9, "flat", ""), (0.3, "slow", "")],
)
def test_held_out_prompts_too_few_even_for_the_probe(trained: float, course: str, cause: str) -> None:
    """The gain is that of the training prompts, where it is clear and half of it is below the evaluation's interval."""
    unclear = replace(GAIN, after=0.7, width=0.3, prompts=8)
    measured = replace(HEALTHY, training=unclear, evaluation=unclear)
    ends: dict[str, Any] = {"before": 0.5, "after": 0.7, "before_width": 0.2, "after_width": 0.2}
    held_out = Change(name="reward", **ends, change=0.2, width=0.35, shared=8, verdict="even")
    found = ids(measured=measured, course=course, change=trained, held_out=held_out)
    assert found == ([cause] if cause else [])


def test_a_longer_step_for_a_run_that_gets_nowhere() -> None:
    (cause,) = found("trainer.learning_rate=1e-5", measured=replace(HEALTHY, logprob_change=0.0002))
    assert cause.overrides == ["trainer.learning_rate=0.001"]  # 100 steps would move log-probs by .02, and 3 are usual
