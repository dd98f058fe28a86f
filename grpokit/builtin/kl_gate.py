"""Lets the KL act only on samples whose trained reward is suspect: it ranks them higher than the monitors do.

From GARDO (He et al., 2025, arXiv:2512.24138). A sample's suspicion is its rank under the trained rewards' total, among
all samples of the step, minus the mean of its ranks under the monitors; ranks lie between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpokit import Modifier, Signal, Step, TrainerSetup, UsageError
from grpokit.rewards.scoring import Scores
from grpokit.settings import Share, check_settings

_STEPS, _RATE = 20, 0.1  # that the share is compared with, and by which it changes


@dataclass(eq=False, kw_only=True)
class KLGate(Modifier):
    """Lets the KL act only on the samples whose trained reward outranks their monitors most.

    Attributes:
        share: the share of a step's samples that the KL acts on, at the start. It rises by a tenth when the trained
            reward outranks the monitors by more than in each of the last 20 steps. It falls by a tenth when the trained
            reward outranks them by less than in each of these.
        low: the lower bound of the share.
        high: the upper bound of the share.
        monitors: the monitors that measure quality; empty for all.
    """

    share: Share = 0.1
    low: Share = 0.02
    high: Share = 0.2
    monitors: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_settings(self)
        self._share = self.share
        self._past: list[float] = []  # mean suspicion of the last steps, of the samples that have some

    def check_together(self) -> None:
        """Refuse bounds in the wrong order.

        Raises:
            UsageError: with the numbers.
        """
        if not self.low <= self.share <= self.high:
            raise UsageError(
                f"A kl-gate needs low <= share <= high; got low={self.low}, share={self.share} and high={self.high}."
            )

    def begin(self, setup: TrainerSetup) -> None:
        """Refuse a trainer without a KL or without a monitor."""
        if not setup.objective.needs_reference or not any(term.monitor for term in setup.rewards):
            raise UsageError("kl-gate needs a KL (trainer.kl_coef above 0) and a monitor (a reward of weight 0).")

    def rows(self, signal: Signal, step: Step) -> Signal:
        """Leave the KL to the samples that are suspect; to all in a step that measures no monitor."""
        suspects = self.suspects(step.scores)
        if suspects is None:
            return signal
        return replace(signal, kl_weights=signal.kl_weights * suspects)

    def suspects(self, scores: Scores) -> Tensor | None:
        """[B] bool; None where no monitor has scored a sample."""
        columns = [scores.column(name) for name in self.monitors or scores.monitors]
        measured = [ranks(column) for column in columns if not column.isnan().all()]
        if not measured:
            return None
        suspicion = (ranks(scores.totals) - torch.stack(measured).nanmean(0)).nan_to_num(0.0)
        self._adapt(float(suspicion.clamp(min=0).mean()))
        most = max(1, round(self._share * len(suspicion)))
        threshold = suspicion.sort(descending=True).values[most - 1]
        return (suspicion > 0) & (suspicion >= threshold)

    def _adapt(self, mean: float) -> None:
        if self._past and not min(self._past) <= mean <= max(self._past):
            self._share *= 1 + _RATE if mean > max(self._past) else 1 - _RATE
            self._share = min(max(self._share, self.low), self.high)
        self._past = [*self._past, mean][-_STEPS:]

    def metrics(self) -> Mapping[str, float]:
        """The bound on the share of the samples that the KL acts on."""
        return {"kl_gate/share": self._share}

    def state_dict(self) -> Mapping[str, Any]:
        """The share, and the past that it is compared with."""
        return {"share": self._share, "past": self._past}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a result of `state_dict`."""
        self._share, self._past = float(state["share"]), list(state["past"])


def ranks(values: Tensor) -> Tensor:
    """[B] -> [B] between 0 for the lowest and 1 for the highest; equal ones share a rank, and NaN stays.

    >>> ranks(torch.tensor([3.0, 1.0, 3.0, float("nan"), 9.0])).tolist()
    [0.5, 0.0, 0.5, nan, 1.0]
    """
    known = ~values.isnan()
    ordered = values[known].sort().values
    below = torch.searchsorted(ordered, values[known])
    up_to = torch.searchsorted(ordered, values[known], right=True)
    ranked = torch.full_like(values, torch.nan)
    ranked[known] = (below + up_to - 1).to(values) / 2 / max(1, len(ordered) - 1)
    return ranked
