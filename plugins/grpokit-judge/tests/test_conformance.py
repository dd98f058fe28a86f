"""vlm-judge against grpokit's conformance checks, with a server that rates brightness."""

from grpokit import registry
from grpokit.testing import example_samples, outcomes, reward_checks


def test_conformance(judge):
    params = {"url": judge.url, "model": "eye"}
    results = list(
        outcomes(
            reward_checks(
                registry.create("reward", "vlm-judge", params),
                example_samples({"image"}),
                spec=registry.find("reward", "vlm-judge")[1],
                params=params,
                module="grpokit_judge.plugin",
                ladder=False,  # the server knows nothing of words
            )
        )
    )
    assert len(results) >= 10
    assert [result for result in results if result.failed] == []
    assert len(judge.requests) > 20
