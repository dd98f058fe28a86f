"""pickscore, hpsv2 and imagereward against grpokit's conformance checks, with tiny models."""

import pytest

from grpokit import create
from grpokit_check import example_samples, outcomes, reward_checks
from grpokit_preference.plugin import grpokit_rewards

SPECS = {spec.name: spec for spec in grpokit_rewards()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["hpsv2", *(pytest.param(x, marks=pytest.mark.slow) for x in ("pickscore", "imagereward"))]
)
def test_conformance(tiny, name):
    params = tiny.params[name]
    results = list(
        outcomes(
            reward_checks(
                create("reward", name, params),
                example_samples({"image"}),
                spec=SPECS[name],
                params=params,
                module="grpokit_preference.plugin",
                ladder=False,  # no test model can tell a better picture
            )
        )
    )
    assert len(results) >= 10
    assert [result for result in results if result.failed] == []
