"""The tasks of reasoning-gym, each a generator whose entry number i follows from its parameters and i alone.

So a prompt keeps the parameters and i, and the reward makes the entry again: what a task compares with may not be JSON.
"""

from __future__ import annotations

import functools
import json
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS

from grpokit import UsageError
from grpokit.errors import nearest, one_line
from grpokit.registry.settings import read_settings

_REFUSED = {
    "codeio": "some of its questions hold names of temporary files, which are others each time",
    "composite": "it mixes other tasks, which the key tasks does",
}
TASKS = sorted(DATASETS.keys() - _REFUSED.keys())

HASHED = (
    "intermediate_integration",
    "isomorphic_strings",
    "knight_swap",
    "polynomial_multiplication",
    "ransom_note",
    "word_ladder",
)
"""Tasks that draw from sets of texts, whose order changes with the hash seed of a process."""


def entry(task: str, parameters: Mapping[str, Any], index: int) -> dict[str, Any]:
    """An entry of a task: its question, its answer and metadata, as its `score_answer` expects it.

    Args:
        task: the task's name.
        parameters: those of its generator, with "seed" and "size".
        index: the entry's number, from 0.

    Raises:
        UsageError: as `generator`.
    """
    return _entry(task, json.dumps(parameters, sort_keys=True), index)


def generator(task: str, parameters: Mapping[str, Any]) -> ProceduralDataset:
    """The generator of a task.

    Raises:
        UsageError: there is no such task, it does not take these parameters, or another process makes other questions.
    """
    return _generator(task, json.dumps(parameters, sort_keys=True))


@functools.cache
def _entry(task: str, parameters: str, index: int) -> dict[str, Any]:
    entries = _generator(task, parameters)
    with _seeded(index):
        return dict(entries[index])


@functools.cache
def _generator(task: str, parameters: str) -> ProceduralDataset:
    if task in _REFUSED:
        raise UsageError(f"The task '{task}' of reasoning-gym cannot be used: {_REFUSED[task]}.")
    if task not in TASKS:
        raise UsageError(
            f"reasoning-gym has no task '{task}'{nearest(task, TASKS)}. `python -m grpokit_reasoning_gym` lists all."
        )
    if task in HASHED and sys.flags.hash_randomization:
        raise UsageError(
            f"reasoning-gym makes other questions of the task '{task}' in each process. "
            "Set PYTHONHASHSEED=0 before the command, or leave the task out."
        )
    kind, settings = DATASETS[task]
    try:
        return kind(read_settings(settings, json.loads(parameters), key=f"tasks.{task}", example="{size: 100}"))
    except (AssertionError, TypeError, ValueError) as error:  # what its `validate` says
        raise UsageError(f"tasks.{task}: {one_line(error)}.") from error


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The task `list_functions` draws from Python's global generator, too: seed it, and leave it as it was."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
