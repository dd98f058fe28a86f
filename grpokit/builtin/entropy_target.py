"""Adapts the entropy bonus to a target: its coefficient rises while the entropy is below it, and falls otherwise.

From Skywork-OR1 (He et al., 2025, arXiv:2505.22312). The entropy is the mean over all decisions of an
optimizer step. It sets the coefficient of the next one, so a step's micro-batches all have the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from grpokit import Modifier, Objective, Tally, TrainerSetup, UsageError
from grpokit.settings import NotNegative, Positive, check_settings


@dataclass(eq=False, kw_only=True)
class EntropyTarget(Modifier):
    """Adapts the coefficient of the entropy bonus to a target, starting at `entropy_coef`.

    Attributes:
        target: entropy in nats. At or below it, the bonus acts and the coefficient rises; above it, the bonus does not
            act and the coefficient falls.
        delta: the change of the coefficient in each optimizer step.
        low: the lower bound of the coefficient.
        high: the upper bound of the coefficient.
    """

    target: Positive
    delta: Positive = 0.005
    low: NotNegative = 0.0
    high: NotNegative = 1.0

    def __post_init__(self) -> None:
        check_settings(self)
        self._coef = 0.0
        self._entropy: float | None = None  # mean of the last optimizer step

    def check_together(self) -> None:
        """Refuse bounds in the wrong order.

        Raises:
            UsageError: with the bounds.
        """
        if self.low > self.high:
            raise UsageError(f"An entropy-target needs low <= high; got low={self.low} and high={self.high}.")

    def begin(self, setup: TrainerSetup) -> None:
        """Start at the objective's own coefficient."""
        self._coef = setup.objective.entropy_coef

    def objective(self, objective: Objective) -> Objective:
        """The bonus acts only while the entropy is at or below the target."""
        low = self._entropy is not None and self._entropy <= self.target
        return replace(objective, entropy_coef=self._coef if low else 0.0)

    def updated(self, tally: Tally) -> None:
        """Set the coefficient of the next optimizer step by the statistics of the last one."""
        if not tally.decided:
            return
        means = tally.means()
        if "entropy" not in means:
            raise UsageError(
                f"The entropy's target is {self.target}, but this policy's logprobs() gives no entropy. Leave "
                "entropy-target out, or let logprobs() return Decisions with entropy [b, t]."
            )
        self._entropy = means["entropy"]
        change = self.delta if self._entropy <= self.target else -self.delta
        self._coef = min(max(self._coef + change, self.low), self.high)

    def metrics(self) -> Mapping[str, float]:
        """The coefficient of the next optimizer step."""
        return {"entropy_coef": self._coef}

    def state_dict(self) -> Mapping[str, Any]:
        """The coefficient and the entropy."""
        return {"coef": self._coef, "entropy": self._entropy}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a result of `state_dict`."""
        self._coef, self._entropy = state["coef"], state["entropy"]
