"""Steps as observers get them."""

from __future__ import annotations

import torch
from torch import Tensor

from grpokit.rewards.scoring import Scores
from grpokit.training.metrics import Notes
from grpokit.training.step import Step


def a_step(number: int, scores: Scores, advantages: Tensor | None = None) -> Step:
    step = Step(number=number, notes=Notes(torch.device("cpu")))
    step.scores = scores
    if advantages is not None:
        step.advantages = advantages
    return step
