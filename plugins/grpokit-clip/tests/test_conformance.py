"""aesthetic and clip-score against grpokit's conformance checks, with a tiny CLIP."""

import pytest

from grpokit import create
from grpokit_check import example_samples, outcomes, reward_checks
from grpokit_clip.plugin import grpokit_rewards

SPECS = {spec.name: spec for spec in grpokit_rewards()}


@pytest.mark.parametrize("name", ["aesthetic", pytest.param("clip-score", marks=pytest.mark.slow)])
def test_conformance(tiny, name):
    params = {"model": "tiny-clip", "pretrained": None, "weights_path": tiny.torch_file, "device": "cpu"}
    if name == "aesthetic":
        params["head_path"] = tiny.head
    results = list(
        outcomes(
            reward_checks(
                create("reward", name, params),
                example_samples({"image"}),
                spec=SPECS[name],
                params=params,
                module="grpokit_clip.plugin",
                ladder=False,  # no test model can tell a better picture
            )
        )
    )
    assert len(results) >= 10
    assert [result for result in results if result.failed] == []
