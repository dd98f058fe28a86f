"""Lets the KL act only on samples whose trained reward is suspect: it ranks them higher than the monitors do.

From GARDO (He et al., 2025, arXiv:2512.24138). A sample's suspicion is its rank under the trained rewards' total, among
all samples of the step, minus the mean of its ranks under the monitors; ranks lie between 0 and 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpokit.rewards.scoring import Scores
from grpokit.settings import KLGate, TrainerSettings
from grpokit.training.state import State

_STEPS, _RATE = 20, 0.1  # that the share is compared with, and by which it changes


class GatedKL:
    """Says which rows the KL acts on, and adapts their share from step to step."""

    def __init__(self, settings: TrainerSettings) -> None:
        self._gate, self._diversity = settings.kl_gate, settings.diversity  # which says nothing about quality
        self.share = self._gate.share if self._gate else 1.0
        self._past: list[float] = []  # mean suspicion of the last steps, of the samples that have some

    def rows(self, scores: Scores) -> Tensor | None:
        """[B] bool, of the rows of all processes; None for all, as in a step that measures no monitor."""
        weights = zip(scores.names, scores.weights.tolist(), strict=True)
        monitors = [i for i, (name, weight) in enumerate(weights) if weight == 0 and name != self._diversity]
        measured = [ranks(x) for x in scores.matrix.T[monitors] if not x.isnan().all()]
        if self._gate is None or not measured:
            return None
        suspicion = (ranks(scores.totals) - torch.stack(measured).nanmean(0)).nan_to_num(0.0)
        self._adapt(float(suspicion.clamp(min=0).mean()), self._gate)
        most = max(1, round(self.share * len(suspicion)))
        return (suspicion > 0) & (suspicion >= suspicion.sort(descending=True).values[most - 1])

    def _adapt(self, mean: float, gate: KLGate) -> None:
        if self._past and not min(self._past) <= mean <= max(self._past):
            self.share *= 1 + _RATE if mean > max(self._past) else 1 - _RATE
            self.share = min(max(self.share, gate.low), gate.high)
        self._past = [*self._past, mean][-_STEPS:]

    def metrics(self) -> dict[str, float]:
        """The share of the samples that the KL acts on, if it is gated."""
        return {} if self._gate is None else {"kl_gate/share": self.share}

    def state_dict(self) -> State:
        """The share, and the past that it is compared with."""
        return {"share": self.share, "past": self._past}

    def load_state_dict(self, state: State) -> None:
        """Load a result of `state_dict`."""
        self.share, self._past = float(state["share"]), list(state["past"])


def ranks(values: Tensor) -> Tensor:
    """[B] -> [B] between 0 for the lowest and 1 for the highest; equal ones share a rank, and NaN stays.

    >>> ranks(torch.tensor([3.0, 1.0, 3.0, float("nan"), 9.0])).tolist()
    [0.5, 0.0, 0.5, nan, 1.0]
    """
    known = ~values.isnan()
    ordered = values[known].sort().values
    below, up_to = (torch.searchsorted(ordered, values[known], right=right) for right in (False, True))
    found = torch.full_like(values, torch.nan)
    found[known] = (below + up_to - 1).to(values) / 2 / max(1, len(ordered) - 1)
    return found
