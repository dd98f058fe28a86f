"""The dataset `reasoning-gym`, from names and parameters of tasks to prompts."""

from __future__ import annotations

import random
from typing import Any

import pytest

from grpokit import UsageError, create
from grpokit_check import Check, dataset_checks, parametrize_with_checks
from grpokit_reasoning_gym.questions import questions
from grpokit_reasoning_gym.tasks import entry

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def prompts_of(split: str) -> Any:
    return create("dataset", "reasoning-gym", {"split": split, "tasks": ["chain_sum", "rearc"], "size": 9})


@parametrize_with_checks(dataset_checks(prompts_of, module="grpokit_reasoning_gym.plugin"))
def test_contract(check: Check) -> None:
    check()


def test_tasks_come_in_turn_with_their_names_answers_and_entries() -> None:
    prompts = questions(tasks={"chain_sum": SUMS, "spell_backward": None}, size=3, prompt="Q: {question} A:")
    assert [prompt.meta["task"] for prompt in prompts] == ["chain_sum", "spell_backward"] * 3
    for prompt in prompts:
        made = entry(**prompt.meta)
        assert (prompt.text, prompt.target) == (f"Q: {made['question']} A:", made["answer"])


def test_what_is_held_out_is_never_trained_on_in_a_small_task() -> None:
    learned, evaluated = (
        questions(split, tasks={"chain_sum": SUMS}, size=400, held_out=20) for split in ("train", "eval")
    )
    texts = [{prompt.text for prompt in prompts} for prompts in (learned, evaluated)]
    assert not texts[0] & texts[1]
    assert (len(texts[0]), len(texts[1])) == (len(learned), len(evaluated))
    assert len(learned) < 400 - 20  # there are no more sums of two digits


def test_held_out_questions_stay_and_seeds_differ() -> None:
    tasks = ["chain_sum"]
    evaluated = [questions("eval", tasks=tasks, held_out=9, size=size, seed=3) for size in (5, 50)]
    assert evaluated[0] == evaluated[1]
    shared = [{p.text for p in questions(tasks=tasks, size=50, seed=seed)} for seed in (0, 1)]
    assert not shared[0] & shared[1]


@pytest.mark.parametrize("task", ["list_functions", "chain_sum"])
def test_the_global_generator_neither_decides_nor_moves(task: str) -> None:
    made = []
    for state, index in ((1, 40), (2, 41)):
        random.seed(state)
        before = random.getstate()
        parameters = {"seed": 5, "size": 100 + index}  # not made before
        made += [entry(task, parameters, 3)["question"]]
        assert random.getstate() == before
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tasks": ["chain_sums"]}, r"no task 'chain_sums' \(did you mean 'chain_sum'\?\)"),
        ({"tasks": ["composite"]}, "'composite' of reasoning-gym cannot be used"),
        (
            {"tasks": {"chain_sum": {"min_term": 2}}},
            r"tasks\.chain_sum has no key 'min_term' \(did you mean 'min_terms'",
        ),
        ({"tasks": {"chain_sum": {"min_terms": 9}}}, "tasks.chain_sum: max_terms must be >= min_terms"),
        ({"tasks": {"chain_sum": {"seed": 3}}}, "seed is a key beside tasks"),
        ({"tasks": ["chain_sum"], "prompt": "Add!"}, "a place for the {question}"),
    ],
)
def test_bad_input(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        questions(**given)
