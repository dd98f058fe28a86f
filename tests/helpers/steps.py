"""Steps as observers get them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from grpokit.group_statistics import groups_without_advantage
from grpokit.rewards.scoring import Scores
from grpokit.training.metrics import StepLog
from grpokit.training.minibatches import Signal
from grpokit.training.step import LearningStep, Step


def a_step(number: int, scores: Scores, advantages: Tensor | None = None, ends: Sequence[str] = ()) -> Step:
    rows = SimpleNamespace(ends=[(end, None) for end in ends])
    draw = SimpleNamespace(all_rows=rows, prompts=scores.groups.unique().tolist())
    step = Step(number=number, log=StepLog(torch.device("cpu")), draw=draw, scores=scores)
    if advantages is None:
        return step
    zero_std_groups = groups_without_advantage(advantages, scores.groups)
    return LearningStep(**vars(step), zero_std_groups=zero_std_groups, signal=Signal.of(advantages))
