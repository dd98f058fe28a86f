"""The tasks of reasoning-gym: what they make, here and in other processes, and how they score their own answers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection

import pytest
import yaml
from task_reports import SIZE, reports

from grpokit import UsageError
from grpokit_reasoning_gym.questions import questions
from grpokit_reasoning_gym.tasks import HASHED, TASKS

FEW = ("basic_arithmetic", "countdown", "list_functions", "rush_hour", "syllogism", "word_ladder")
NO_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Tasks that give no answer of their own, but score any."""

RUN_CODE = {
    *("binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication", "puzzle24"),
    *("simple_integration", "spiral_matrix", "string_insertion"),
}
"""Tasks that run an answer as Python code."""


@pytest.mark.parametrize("tasks", [FEW, pytest.param(TASKS, marks=pytest.mark.slow)], ids=["few", "all"])
def test_all_processes_make_the_same_questions_and_own_answers_score_1(tasks: Collection[str]) -> None:
    made = reports(tasks, state=1, hash_seed="0")
    for task, report in made.items():
        assert report["scores"] == [None if task in NO_ANSWER else 1.0] * SIZE, task
        assert len({*report["learned"], *report["evaluated"]}) == 2 * SIZE, task
    assert {task for task, report in made.items() if report["runs_code"]} == RUN_CODE & {*tasks}
    other = reports([task for task in tasks if task not in HASHED], state=2, hash_seed="1")
    assert [task for task, report in other.items() if report != made[task]] == []


def test_the_listed_parameters_are_those_that_a_task_has_without() -> None:
    listed = subprocess.run([sys.executable, "-m", "grpokit_reasoning_gym"], check=True, capture_output=True, text=True)
    tasks = yaml.safe_load(listed.stdout)
    assert tasks.keys() == {*TASKS}
    few = [task for task in FEW if task not in HASHED]
    with_parameters = questions("eval", tasks={task: tasks[task] for task in few}, held_out=SIZE)
    without = questions("eval", tasks=few, held_out=SIZE)
    assert [prompt.text for prompt in with_parameters] == [prompt.text for prompt in without]


@pytest.mark.skipif(not sys.flags.hash_randomization, reason="PYTHONHASHSEED is 0")
@pytest.mark.parametrize("task", HASHED)
def test_a_task_that_other_processes_make_otherwise_is_refused(task: str) -> None:
    with pytest.raises(UsageError, match="PYTHONHASHSEED=0"):
        questions(tasks=[task])


def test_there_are_about_a_hundred() -> None:
    assert len(TASKS) >= 104
