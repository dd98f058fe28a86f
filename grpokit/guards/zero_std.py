"""Watches for steps from which nothing can be learned, since the samples of every group have the same reward."""

from __future__ import annotations

import math

from torch import Tensor

from grpokit.errors import RunError, plural
from grpokit.group_statistics import Groups
from grpokit.guards.streak import Streak
from grpokit.training.state import State
from grpokit.training.step import LearningStep, Step


class ZeroStd(Streak):
    """Watches for steps with only zero-std groups: each group's totals are equal, so every advantage is 0.

    After `most` such steps in a row there are two cases. If the reward is at least as high as in any step with spread,
    the policy has converged, and `converged` says so. Otherwise something is wrong, and it raises.

    It also warns once of a single reward that has not told the samples of any group apart in `FLAT` steps.
    """

    FLAT = 3

    def __init__(self, most: int | None) -> None:
        super().__init__(most)
        self.flat: dict[str, int | None] = {}  # reward -> steps in which others taught alone; None: it is settled
        self.best = self.streak_best = -math.inf  # mean reward, of steps with spread and of the current streak
        self.converged = ""

    def weighted(self, step: LearningStep) -> list[str]:
        """Count a step."""
        scores = step.scores.trained
        reward = float(scores.totals.nanmean())
        if not bool(step.zero_std_groups.all()):
            self.count = 0
            self.streak_best = -math.inf
            self.best = max(self.best, reward)  # as it is where no row is scored: NaN is not larger
            return self._flat(step)
        ended = self.count_one()
        self.streak_best = max(self.streak_best, reward)
        columns = zip(scores.names, scores.matrix.T, strict=True)
        spreads = [_spread(name, column, scores.groups) for name, column in columns]
        spread = "; ".join(spreads) + _cut(step)
        if ended:
            stretch = (
                f"For {self.count} steps in a row, all samples of every group got the same rewards, so there was "
                f"nothing to learn from. In step {step.number}: {spread}."
            )
            if math.isfinite(self.best) and self.streak_best >= self.best:
                self.converged = (
                    f"{stretch} No step had a higher mean reward, so the policy has converged. Raise "
                    "trainer.max_zero_std_steps to continue anyway."
                )
                return [self.converged]
            raise RunError(
                f"{stretch} Usual causes: the task is too hard for every sample; the reward gives all these samples "
                "the same score; the temperature is too low for samples to differ. Change the prompts or the rewards, "
                "or raise trainer.max_zero_std_steps (null never stops).",
                page="guards#while-it-runs",
            )
        return self.warn_once(
            f"In step {step.number} all samples of every group got the same rewards, so there was nothing to learn "
            f"from: {spread}."
        )

    def _flat(self, step: LearningStep) -> list[str]:
        warnings = []
        scores = step.scores.trained
        for name, column in zip(scores.names, scores.matrix.T, strict=True):
            steps = self.flat.get(name, 0)
            if steps is None:
                continue
            self.flat[name] = steps + 1 if _is_flat(column, scores.groups) else None
            if self.flat[name] == self.FLAT:
                self.flat[name] = None
                warnings.append(
                    f"In {self.FLAT} steps the reward '{name}' has not told the samples of any group apart, so it "
                    f"taught nothing; the others did. In step {step.number}: "
                    f"{_spread(name, column, scores.groups)}{_cut(step)}. Usual causes: the prompts lack what it "
                    "reads, or it is too hard or too easy for every sample."
                )
        return warnings

    def state_dict(self) -> State:
        """The counts and the best rewards."""
        return {
            **super().state_dict(),
            "most": self.most,
            "converged": self.converged,
            "flat": {**self.flat},
            "best": self.best if math.isfinite(self.best) else None,
            "streak_best": self.streak_best if math.isfinite(self.streak_best) else None,
        }

    def load_state_dict(self, state: State) -> None:
        """Load a result of `state_dict`; under another limit the run counts as not converged."""
        best, streak_best = state["best"], state["streak_best"]
        self.best = -math.inf if best is None else best
        self.streak_best = -math.inf if streak_best is None else streak_best
        super().load_state_dict(state)
        self.flat = {**state["flat"]}
        self.converged = state["converged"] if state["most"] == self.most else ""


def _spread(name: str, column: Tensor, groups: Tensor) -> str:
    values = column[~column.isnan()]
    if not len(values):
        return f"'{name}' scored no row"
    low, high = float(values.min()), float(values.max())
    if low == high:
        return f"'{name}' gave {low:g} to all {len(values)} rows that it scored"
    reason = "the same inside each group" if _is_flat(column, groups) else "which did not count"
    return f"'{name}' gave {low:g} to {high:g}, {reason}"


def _cut(step: Step) -> str:
    """A remark if the limit of length cut half of the texts or more, so that they may lack what rewards look for."""
    ends = step.draw.all_rows.ends
    cut = sum(finish == "length" for finish, _ in ends)
    if not cut or 2 * cut < len(ends):
        return ""
    return f". {cut:,} of {plural(len(ends), 'text')} were cut at the limit of length: raise policy.max_new_tokens"


def _is_flat(column: Tensor, groups: Tensor) -> bool:
    """Whether a reward gave all rows of each group that it scored the same, as advantages see it."""
    return bool(Groups(groups).is_constant(column, ~column.isnan()).all())
