"""Both rewards against grpokit's conformance checks."""

from dataclasses import replace

import pytest
from drawn import begun, samples, write_references

from grpokit_check import example_samples, outcomes, reward_checks
from grpokit_likeness.plugin import grpokit_rewards
from grpokit_likeness.reward import ReferenceLikeness, ReferenceNearness

SPECS = {spec.name: spec for spec in grpokit_rewards()}
MODULE = "grpokit_likeness.plugin"


def _failed(reward, name, params, drawn, **options):
    checks = reward_checks(reward, drawn, spec=SPECS[name], params=params, module=MODULE, ladder=False, **options)
    results = list(outcomes(checks))
    assert len(results) >= 11
    return [result for result in results if result.failed]


def test_likeness_with_a_head(tmp_path):
    params = {"references": write_references(tmp_path / "mine")}
    reward = begun(**params)
    reward(samples(1))
    reward.learn([reward.lesson()], pytest.fail)
    drawn = [replace(sample, info={"training_step": 2}) for sample in example_samples({"image"})]
    assert _failed(reward, "reference-likeness", params, drawn) == []


def test_likeness_without_a_run(tmp_path):
    """Nothing is scored, which its spec expects."""
    params = {"references": write_references(tmp_path / "mine")}
    assert _failed(ReferenceLikeness(**params), "reference-likeness", params, example_samples({"image"})) == []


def test_nearness(tmp_path):
    params = {"references": write_references(tmp_path / "mine")}
    assert _failed(ReferenceNearness(**params), "reference-nearness", params, example_samples({"image"})) == []
