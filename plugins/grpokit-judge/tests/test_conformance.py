"""The rewards against grpokit's conformance checks, with a server that rates brightness."""

from dataclasses import replace

import pytest
from PIL import ImageStat

from grpokit import registry
from grpokit.testing import example_samples, outcomes, reward_checks


def bright(request):
    """Whether the picture is bright."""
    light = ImageStat.Stat(request.pictures[0].convert("L")).mean[0] > 127
    return "Yes" if light else "No"


@pytest.mark.parametrize("name", ["vlm-judge", "vlm-checklist"])
def test_conformance(judge, name):
    params = {"url": judge.url, "model": "eye"}
    samples = example_samples({"image"})
    if name == "vlm-checklist":
        judge.script = [bright] * 1000
        samples = [replace(s, prompt=replace(s.prompt, meta={"vqa_list": [["Is it bright?", "Yes"]]})) for s in samples]
    results = list(
        outcomes(
            reward_checks(
                registry.create("reward", name, params),
                samples,
                spec=registry.find("reward", name)[1],
                params=params,
                module="grpokit_judge.plugin",
                ladder=False,  # the server knows nothing of words
            )
        )
    )
    assert len(results) >= 10
    assert [result for result in results if result.failed] == []
    assert len(judge.requests) > 20
