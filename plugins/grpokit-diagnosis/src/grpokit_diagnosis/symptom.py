"""What a run's reward did: on its training prompts, step by step, and on held-out ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grpokit.evaluation.intervals import half_width
from grpokit.evaluation.paired import Change
from grpokit.report.verdict import headline, main_change
from grpokit.run_folder.reader import RunHistory

Course = Literal["rising", "slow", "flat", "falling", "unseen", "apart", "unscored", "learning", "untrained", "unknown"]
"""How the reward went.

"slow": it rose, by little. "unseen": in training it rose much more than on held-out prompts. "apart": it rose in
training and fell on held-out prompts. "unscored": it is flat in training and never scored on held-out prompts, as one
that compares the samples of a group is while the policy learns. "learning": the reward itself learns while the run goes
on, so its scores of two steps have no common scale. "untrained": no reward has a weight.
"""

NOT_HELD_BACK = frozenset({"rising", "unscored", "learning", "untrained", "unknown"})
"""Courses that do not say by themselves that something holds the reward back."""

_FEWEST = 6  # steps
_SAID = {
    "rising": "The reward rose",
    "slow": "The reward rose by little",
    "flat": "The reward did not move",
    "falling": "The reward fell",
    "unseen": "The reward rose in training, and held-out prompts hardly show it",
    "apart": "The reward rose in training, and fell on held-out prompts",
    "unscored": "Held-out prompts are not scored, and the mean in training did not move, as that of a reward that "
    "compares the samples of a group never does",
    "learning": "The reward learns while the run goes on, so its mean does not say what the policy has learned",
    "untrained": "No reward is trained here",
    "unknown": f"There are fewer than {_FEWEST} scored steps, too few to say what the reward did",
}
_OF_EACH = ("mean", "std", "unscored", "failed", "seconds")  # metrics that every reward has
_LITTLE = 0.25  # of the spread inside groups at the beginning
_SEEN = 0.5  # of the gain in training


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """What is seen of a run.

    Attributes:
        course: of the reward.
        change: from the first third of the steps to the last, in training.
        width: half the 95 % confidence interval of that.
        held_out: the change on held-out prompts; None without two evaluations.
        best: the step after which the reward was highest, by the evaluations if there are several.
    """

    course: Course
    change: float
    width: float
    held_out: Change | None
    best: int

    def __str__(self) -> str:
        seen = []
        if self.held_out is not None and self.held_out.change is not None:
            width = "" if self.held_out.width is None else f" ± {self.held_out.width:.2g}"
            seen.append(f"{self.held_out.change:+.3g}{width} on held-out prompts")
        if not math.isnan(self.change):
            seen.append(f"{self.change:+.3g} ± {self.width:.2g} in training")
        return f"{_SAID[self.course]}{': ' if seen else ''}{', '.join(seen)}."


def symptom(run: RunHistory) -> Symptom:
    """What the reward of a run did."""
    rows = [row for row in run.metrics if row.get("reward") is not None]
    rewards = [float(row["reward"]) for row in rows]
    third = len(rewards) // 3
    held_out = main_change(headline(run)) if len(run.evaluations) > 1 else None
    if len(rewards) < _FEWEST:
        course: Course = "unknown" if any(run.weights.values()) else "untrained"
        return Symptom(course=course, change=math.nan, width=math.nan, held_out=held_out, best=0)
    if _learns(run) and (held_out is None or not _sign(held_out)):
        return Symptom(course="learning", change=math.nan, width=math.nan, held_out=held_out, best=0)
    first, last = rewards[:third], rewards[-third:]
    change = _mean(last) - _mean(first)
    width = math.hypot(_width(first), _width(last))
    return Symptom(
        course=course_of(change, width, held_out, recent(rows[:third], "reward_std")),
        change=change,
        width=width,
        held_out=held_out,
        best=_best(run, rows),
    )


def _learns(run: RunHistory) -> bool:
    """Whether a trained reward learns while the run goes on; such a reward has metrics of its own."""
    usual = {f"rewards/{name}/{key}" for name in run.names for key in _OF_EACH}  # names may hold slashes
    trained = tuple(f"rewards/{name}/" for name in run.names if run.weights.get(name))
    return any(key.startswith(trained) and key not in usual for key in run.keys)


def course_of(change: float, width: float, held_out: Change | None, spread: float) -> Course:
    """How a reward went.

    Args:
        change: in training.
        width: half the 95 % confidence interval of that.
        held_out: the change on held-out prompts.
        spread: inside groups at the beginning.
    """
    trained = 0 if abs(change) <= width else math.copysign(1, change)
    gain, error, clear = change, 0.0, trained
    if held_out is not None and held_out.width is not None:
        gain, error, clear = float(held_out.change or 0.0), held_out.width, _sign(held_out)
    if trained > 0 and clear < 0:
        return "apart"
    if clear < 0 or (trained < 0 and clear == 0):
        return "falling"
    if trained > 0 and gain < _SEEN * change and change - gain > math.hypot(width, error):
        return "unseen"
    if clear > 0:
        return "rising" if gain >= _LITTLE * spread else "slow"
    return "unscored" if held_out is not None and held_out.after is None else "flat"


def _sign(change: Change) -> int:
    """1 where a score got better beyond chance, -1 where it got worse."""
    return {"better": 1, "worse": -1}.get(change.verdict, 0)


def _best(run: RunHistory, rows: Sequence[Mapping[str, Any]]) -> int:
    """The step with the best evaluation or, without evaluations, at which a moving average is highest."""
    means = {row["step"]: row["means"].get("reward") for row in run.evaluations}
    scored = {step: mean for step, mean in means.items() if mean is not None}
    if len(scored) > 1:
        highest = max(scored.values())
        return int(next(step for step, mean in scored.items() if mean == highest))
    span = max(3, len(rows) // 10)
    averages = [recent(rows[i : i + span], "reward") for i in range(len(rows) - span + 1)]
    return int(rows[averages.index(max(averages)) + span // 2 - 1]["step"])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _width(values: Sequence[float]) -> float:
    return half_width(values, range(len(values)))


def recent(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    """The mean of a metric over the rows that have it; NaN where none has."""
    values: list[Any] = [row[name] for row in rows if row.get(name) is not None]
    return _mean(values) if values else math.nan
