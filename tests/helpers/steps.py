"""Steps as observers get them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from grpokit.group_statistics import zero_per_group
from grpokit.rewards.scoring import Scores
from grpokit.training.batch import Signal
from grpokit.training.metrics import Notes
from grpokit.training.step import Step


def a_step(number: int, scores: Scores, advantages: Tensor | None = None, ends: Sequence[str] = ()) -> Step:
    step = Step(number=number, notes=Notes(torch.device("cpu")))
    step.scores = scores
    rows = SimpleNamespace(ends=[(end, None) for end in ends])
    step.drawn = SimpleNamespace(rows=rows, prompts=scores.groups.unique().tolist())
    if advantages is not None:
        step.zero_std = zero_per_group(advantages, scores.groups)
        step.signal = Signal.of(advantages)
    return step
