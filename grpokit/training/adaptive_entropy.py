"""Adapts the entropy bonus to a target: its coefficient rises while the entropy is below it, and else falls.

From Skywork-OR1 (He et al., 2025, arXiv:2505.22312). The entropy is the mean over all decisions of an
optimizer step. It sets the coefficient of the next one, so a step's micro-batches all have the same.
"""

from __future__ import annotations

from dataclasses import replace

from grpokit.errors import UsageError
from grpokit.objectives import Objective
from grpokit.settings import EntropyTarget
from grpokit.training.metrics import Tally
from grpokit.training.state import State


class AdaptiveEntropy:
    """The coefficient of the entropy bonus, from one optimizer step to the next; without a target it stays."""

    def __init__(self, objective: Objective, target: EntropyTarget | None) -> None:
        self._objective, self._target = objective, target
        self.coef = objective.entropy_coef  # it acts only while the entropy is at or below the target
        self.entropy: float | None = None  # mean of the last optimizer step

    @property
    def objective(self) -> Objective:
        """The objective of the next optimizer step."""
        if self._target is None:
            return self._objective
        low = self.entropy is not None and self.entropy <= self._target.target
        return replace(self._objective, entropy_coef=self.coef if low else 0.0)

    def adapt(self, tally: Tally) -> None:
        """Set the coefficient of the next optimizer step by the statistics of the last one."""
        t = self._target
        if t is None or not tally.decided:
            return
        means = tally.means()
        if "entropy" not in means:
            raise UsageError(
                f"The entropy's target is {t.target}, but this policy's logprobs() gives no entropy. Set entropy to "
                "null, or let logprobs() return Decisions with entropy [b, t]."
            )
        self.entropy = entropy = means["entropy"]
        change = t.delta if entropy <= t.target else -t.delta
        self.coef = min(max(self.coef + change, t.low), t.high)

    def metrics(self) -> dict[str, float]:
        """The coefficient of the next optimizer step, if there is a target."""
        return {} if self._target is None else {"entropy_coef": self.coef}

    def state_dict(self) -> State:
        """The coefficient and the entropy."""
        return {"coef": self.coef, "entropy": self.entropy}

    def load_state_dict(self, state: State) -> None:
        """Load a result of `state_dict`."""
        self.coef, self.entropy = state.get("coef", self._objective.entropy_coef), state.get("entropy")
