"""box-iou and box-format against grpokit's conformance checks."""

from grpokit import Prompt, Sample
from grpokit_check import Check, parametrize_with_checks, reward_checks
from grpokit_grounding.plugin import grpokit_rewards
from grpokit_grounding.reward import BoxFormat, BoxIoU

SPECS = {spec.name: spec for spec in grpokit_rewards()}

TARGETS = [[0, 0, 4, 4], "[10, 10, 20, 30]", None]
ANSWERS = ["<think>left</think><answer>[0, 0, 4, 4]</answer>", "<answer>[2, 2, 12, 18]</answer>", "no box", ""]


def samples():
    prompts = [Prompt(text="where is the cup?", target=target) for target in TARGETS]
    return [Sample(prompt=p, output=text, group=g) for g, p in enumerate(prompts) for text in ANSWERS]


def checks(name, build, params):
    spec = SPECS[name]
    return reward_checks(build(**params), samples(), spec=spec, params=params, module="grpokit_grounding.plugin")


@parametrize_with_checks(checks("box-iou", BoxIoU, {"edges": "inclusive"}))
def test_box_iou(check: Check):
    check()


@parametrize_with_checks(checks("box-iou", BoxIoU, {"threshold": 0.5}))
def test_box_iou_with_a_threshold(check: Check):
    check()


@parametrize_with_checks(checks("box-format", BoxFormat, {"edges": "exclusive"}))
def test_box_format(check: Check):
    check()
