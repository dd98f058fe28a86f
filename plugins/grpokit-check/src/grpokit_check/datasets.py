"""The checks that every dataset passes: prompts of two splits, which are the same each time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from grpokit.data import as_prompts
from grpokit.errors import brief
from grpokit.types import Prompt
from grpokit_check.check import Check, checks_of, expect, expect_untouched, random_states

_SPLITS = ("train", "eval")
Dataset = Callable[[str], Iterable[str | Prompt]]


def dataset_checks(prompts: Dataset, *, module: str | None = None) -> Iterator[Check]:
    """Yield the checks of a dataset.

    Args:
        prompts: the prompts of a split, "train" or "eval", with the dataset's parameters bound.
        module: the plugin's module behind the entry point, which must import nothing heavy.
    """
    yield from checks_of(_CHECKS, prompts, module)


def prompts(dataset: Dataset) -> None:
    """Each split has prompts, as texts or `grpokit.Prompt`."""
    for split in _SPLITS:
        expect(len(as_prompts(dataset(split))), f"prompts of the split '{split}'", "none",
               "a split of another name")  # fmt: skip


def repeatable(dataset: Dataset) -> None:
    """The same prompts come each time, whatever the global random states are."""
    for split in _SPLITS:
        first, second = (_drawn(dataset, split, state) for state in (1, 2))
        expect(first == second, f"the same prompts of the split '{split}' twice", "others",
               "random numbers without a seed of their own; use random.Random(seed)")  # fmt: skip


def _drawn(dataset: Dataset, split: str, state: int) -> list[Prompt]:
    """The prompts, with global random states that begin with a number."""
    torch.manual_seed(state)
    np.random.seed(state)
    random.seed(state)
    return [*as_prompts(dataset(split))]


def global_rng(dataset: Dataset) -> None:
    """Global random states are left alone."""
    before = random_states()
    for split in _SPLITS:
        list(dataset(split))
    expect_untouched(before, "a dataset")


def held_out(dataset: Dataset) -> None:
    """No held-out prompt is one to learn from, with its text and its source pictures."""
    learned: dict[str, list[Any]] = {}  # text -> source pictures
    for prompt in as_prompts(dataset("train")):
        learned.setdefault(prompt.text, []).append(prompt.images)
    shared = [p.text for p in as_prompts(dataset("eval")) if p.images in learned.get(p.text, [])]
    expect(not shared, "held-out prompts that are not among the others", f"{len(shared)}, such as {brief(shared[:1])}",
           "splits that are drawn with two seeds; leave out of the one what the other has")  # fmt: skip


_CHECKS: Sequence[Callable[[Dataset], None]] = (prompts, repeatable, global_rng, held_out)
