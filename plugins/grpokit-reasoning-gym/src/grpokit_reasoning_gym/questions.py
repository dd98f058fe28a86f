"""Prompts from the generators of reasoning-gym."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from grpokit import Prompt, UsageError
from grpokit.settings import Count
from grpokit_reasoning_gym.tasks import entry

PROMPT = "{question}\n\nWrite the final answer between <answer> and </answer>."
Generators = Mapping[str, Mapping[str, Any]]


def questions(
    split: str = "train",
    *,
    tasks: Sequence[str] | Mapping[str, Mapping[str, Any] | None],
    size: Count = 500,
    held_out: Count = 100,
    seed: int = 0,
    prompt: str = PROMPT,
) -> list[Prompt]:
    """Questions of some tasks in turn, each with the task in `meta["task"]` and an answer as its target.

    A question that comes again is left out, and so is one to learn from that is held out. So small tasks give fewer.

    Args:
        split: "train" or "eval".
        tasks: their names, or a mapping from names to parameters of their generators.
        size: questions of each task to learn from.
        held_out: questions of each task to evaluate on. They stay the same whatever the size.
        seed: of the generators.
        prompt: the text around a {question}.

    Raises:
        UsageError: there is no such task, or it does not take these parameters.
    """
    if "{question}" not in prompt:
        raise UsageError(f"prompt must have a place for the {{question}}, got {prompt!r}.")
    by_task = tasks if isinstance(tasks, Mapping) else dict.fromkeys(tasks)
    generators = {task: dict(parameters or {}) for task, parameters in by_task.items()}
    for task, parameters in generators.items():
        if own := parameters.keys() & {"seed", "size"}:
            raise UsageError(f"tasks.{task}: {own.pop()} is a key beside tasks, the same for all of them.")
    evaluation = _of_split("eval", generators, held_out, seed)
    metas = evaluation
    if split == "train":
        training = _of_split("train", generators, size, seed)
        metas = {question: meta for question, meta in training.items() if question not in evaluation}
    return [_prompt(question, meta, prompt) for question, meta in metas.items()]


def _of_split(split: str, generators: Generators, size: int, seed: int) -> dict[str, dict[str, Any]]:
    """Question -> the meta of its prompt."""
    far = random.Random(f"{split} {seed}").getrandbits(31)  # neighbouring seeds share entries, which begin at seed + i
    every = {task: {**parameters, "seed": far, "size": size} for task, parameters in generators.items()}
    metas: dict[str, dict[str, Any]] = {}
    for index in range(size):
        for task, parameters in every.items():
            question = entry(task, parameters, index)["question"]
            metas.setdefault(question, {"task": task, "parameters": parameters, "index": index})
    return metas


def _prompt(question: str, meta: dict[str, Any], prompt: str) -> Prompt:
    return Prompt(text=prompt.replace("{question}", question), target=entry(**meta)["answer"], meta=meta)
