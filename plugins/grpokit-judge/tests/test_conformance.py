"""The rewards against grpokit's conformance checks, with a server that rates brightness."""

import json
from dataclasses import replace

import pytest
from PIL import ImageStat

from grpokit import create
from grpokit_check import example_samples, outcomes, reward_checks
from grpokit_judge.plugin import grpokit_rewards

SPECS = {spec.name: spec for spec in grpokit_rewards()}


def bright(request):
    """Whether the picture is bright."""
    light = ImageStat.Stat(request.pictures[0].convert("L")).mean[0] > 127
    return "Yes" if light else "No"


def brightest(request):
    """The numbers of the pictures behind the one that was edited, from bright to dark."""
    light = [ImageStat.Stat(picture.convert("L")).mean[0] for picture in request.pictures[1:]]
    order = sorted(range(len(light)), key=light.__getitem__, reverse=True)
    return json.dumps({"ranking": [i + 1 for i in order]})


@pytest.mark.parametrize(
    "name", ["vlm-judge", *(pytest.param(x, marks=pytest.mark.slow) for x in ("vlm-checklist", "vlm-ranking"))]
)
def test_conformance(judge, name):
    params = {"url": judge.url, "model": "eye"}
    samples = example_samples({"image"})
    if name == "vlm-ranking":
        judge.script = [brightest] * 1000
    if name == "vlm-checklist":
        params["logprobs"] = 0
        judge.script = [bright] * 1000
        samples = [replace(s, prompt=replace(s.prompt, meta={"vqa_list": [["Is it bright?", "Yes"]]})) for s in samples]
    results = list(
        outcomes(
            reward_checks(
                create("reward", name, params),
                samples,
                spec=SPECS[name],
                params=params,
                module="grpokit_judge.plugin",
                ladder=False,  # the server knows nothing of words
            )
        )
    )
    assert len(results) >= 10
    assert [result for result in results if result.failed] == []
    assert len(judge.requests) > (5 if name == "vlm-ranking" else 20)
