"""The rewards against grpokit's conformance checks."""

from __future__ import annotations

from collections.abc import Iterable

from grpokit import Prompt, Sample
from grpokit_check import Check, parametrize_with_checks, reward_checks
from grpokit_lm.plugin import grpokit_rewards
from grpokit_lm.tasks.countdown import Countdown
from grpokit_lm.tasks.final_answer import final_answer

SPECS = {spec.name: spec for spec in grpokit_rewards()}

ANSWERS = ("<answer>3*5+7</answer>", "<answer>3*5</answer>", "#### 22", "22", "")
PROMPTS = [
    Prompt(text="Make 22 from 3, 5 and 7.", target="22", meta={"numbers": [3, 5, 7]}),
    Prompt(text="Make 15 from 3 and 5.", target="15", meta={"numbers": [3, 5]}),
    Prompt(text="Make something."),
]


def checks(name: str, reward: object) -> Iterable[Check]:
    samples = [Sample(prompt=p, output=text, group=g) for g, p in enumerate(PROMPTS) for text in ANSWERS]
    return reward_checks(reward, samples, spec=SPECS[name], module="grpokit_lm.plugin")


@parametrize_with_checks(checks("countdown", Countdown()))
def test_countdown(check: Check) -> None:
    check()


@parametrize_with_checks(checks("final-answer", final_answer))
def test_final_answer(check: Check) -> None:
    check()
