"""lpips against grpokit's conformance checks, with a random trunk."""

import pytest

from grpokit_check import example_samples, outcomes, reward_checks
from grpokit_lpips.plugin import grpokit_rewards
from grpokit_lpips.reward import LPIPSReward

SPECS = {spec.name: spec for spec in grpokit_rewards()}


@pytest.mark.slow
def test_lpips(checkpoints):
    params = {"net": "squeeze", "weights_path": checkpoints["squeeze"], "device": "cpu", "batch_size": 4}
    results = list(
        outcomes(
            reward_checks(
                LPIPSReward(**params),
                example_samples({"image"}),
                spec=SPECS["lpips"],
                params=params,
                module="grpokit_lpips.plugin",
            )
        )
    )
    assert len(results) >= 11
    assert [result for result in results if result.failed] == []
