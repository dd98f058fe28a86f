"""The reward `reasoning-gym`: a task's own score of the answer in a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from grpokit import DataError, Prompt, Sample
from grpokit.builtin.text_rewards import text_of, with_group
from grpokit_reasoning_gym.questions import questions
from grpokit_reasoning_gym.tasks import entry, generator

_ANSWER = r"<answer>(.*?)</answer>"
_META = ("task", "parameters", "index")


class ReasoningGym:
    """What the prompt's task gives to the answer, from 0 to 1; NaN for a prompt of no task.

    Args:
        pattern: its group matches the answer. The last one that is not empty counts; none scores 0.
    """

    def __init__(self, *, pattern: str = _ANSWER) -> None:
        self.pattern = with_group(pattern, "reasoning-gym", finds="the answer", example="(.*)")

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """One number per sample."""
        return [self._one(sample) for sample in samples]

    def _one(self, sample: Sample) -> float:
        text = text_of(sample, "reasoning-gym")
        if unscorable(sample.prompt):
            return math.nan
        answers = [match[1].strip() for match in self.pattern.finditer(text) if match[1]]
        if not answers:
            return 0.0
        meta = _checked(sample.prompt)
        scorer = generator(meta["task"], meta["parameters"])
        try:
            return float(scorer.score_answer(answers[-1], entry(**meta)))
        except (Exception, SystemExit):  # some tasks raise where an answer does not have their form, or run it
            return 0.0


def unscorable(prompt: Prompt) -> str:
    """Why a prompt has no score; empty if it has one."""
    return "" if prompt.meta.keys() >= set(_META) else "it is no question of the dataset reasoning-gym"


def examples() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The answer of a question and another one."""
    pairs = []
    for prompt in questions("eval", tasks=["chain_sum", "spell_backward", "number_sorting"], held_out=1):
        sample = {"prompt": prompt.text, "target": prompt.target, "meta": prompt.meta}
        right = sample | {"output": f"<answer>{prompt.target}</answer>"}
        wrong = sample | {"output": "<answer>none</answer>"}
        pairs.append((right, wrong))
    return pairs


def _checked(prompt: Prompt) -> dict[str, Any]:
    """The meta of a prompt whose question its generator makes here as well.

    Raises:
        DataError: another version of reasoning-gym made the question.
    """
    meta = {key: prompt.meta[key] for key in _META}
    if entry(**meta)["question"] not in prompt.text:
        raise DataError(
            f"The installed reasoning-gym makes another question than this one of the task '{meta['task']}': "
            f"{prompt.text[:80]!r}. Install the version that the prompts were made with."
        )
    return meta
