"""Watches for reward hacking: a trained reward rises while a monitor falls.

A monitor (weight 0) is a reward that the policy cannot learn from. Each training step has other prompts, so the means
are noisy. A fall counts only if it is unlikely to be chance by the trend test of Mann (1945, Econometrica 13) and
Kendall (1975, Rank Correlation Methods), which needs no scale.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from grpokit.errors import plural
from grpokit.guards.observer import Observer
from grpokit.rewards.terms import RewardTerm
from grpokit.training.step import Step

LEAST, MOST = 9, 30
"""How many measurements a judgement needs, and how many of the last ones count."""

LIMIT = 3.5
"""Standard deviations; noise alone reaches it in about 1 of 150 runs with 200 measurements (measured by simulation)."""


def too_seldom(terms: Sequence[RewardTerm], steps: int) -> list[str]:
    """A warning for each monitor that a run measures too seldom to be judged, where it need not."""
    monitors = [term for term in terms if term.monitor and not term.statistic]
    counts = {term.name: math.ceil(steps / term.every) for term in monitors}
    return [
        f"the monitor '{name}' is measured {plural(count, 'time')} in {plural(steps, 'step')}, and the alarm for "
        f"reward hacking needs {LEAST}: set its `every` to at most {(steps - 1) // (LEAST - 1)}"
        for name, count in counts.items()
        if count < LEAST <= steps
    ]


class RewardHacking(Observer):
    """Compares the trained rewards with the monitors, step by step."""

    def __init__(self) -> None:
        self._rows: dict[str, list[list[float]]] = {}  # monitor -> [step, its mean, the trained rewards' means...]
        self._alarmed: set[str] = set()
        self._trained: list[str] = []

    def scored(self, step: Step) -> list[str]:
        """Add a step; warns of each monitor that begins to fall while a trained reward rises."""
        scores = step.scores
        column_means = scores.matrix.nanmean(0).tolist()
        means = dict(zip(scores.names, column_means, strict=True))
        weights = zip(scores.names, scores.weights.tolist(), strict=True)
        trained = {name: weight for name, weight in weights if weight}
        if list(trained) != self._trained:  # a resume with --force may train on others: columns of something else
            self._rows = {}
            self._alarmed = set()
            self._trained = list(trained)
        warnings = []
        for name in scores.monitors:
            if not math.isfinite(means[name]):
                continue
            rows = self._rows.setdefault(name, [])
            rows.append([step.number, means[name], *(means[other] for other in trained)])
            del rows[:-MOST]
            _, monitor, *columns = zip(*rows, strict=True)
            rising = []
            for (other, weight), column in zip(trained.items(), columns, strict=True):
                if trend(column) * weight > LIMIT * abs(weight):
                    rising.append((other, column))
            falling = trend(monitor) < -LIMIT
            if not (falling and rising and len(rows) >= LEAST):
                self._alarmed.discard(name)
            elif name not in self._alarmed:
                self._alarmed.add(name)
                warnings.append(_alarm(name, rows, rising))
        return warnings

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that a resumed run continues to watch."""
        rows = {}
        for name, own in self._rows.items():
            rows[name] = [[x if math.isfinite(x) else None for x in row] for row in own]
        return {"rows": rows, "alarmed": sorted(self._alarmed), "trained": self._trained}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a result of `state_dict`."""
        self._rows = {}
        for name, rows in state["rows"].items():
            self._rows[name] = [[math.nan if x is None else x for x in row] for row in rows]
        self._alarmed = set(state["alarmed"])
        self._trained = [*state["trained"]]


def trend(values: Sequence[float]) -> float:
    """Mann and Kendall's statistic in standard deviations: above 0 for rising values, about normal for noise.

    NaN is left out; equal values widen nothing and count for neither side.

    >>> round(trend([1.0, 2.0, 3.0, 4.0, 5.0]), 3)
    2.205
    >>> trend([5.0, 5.0, 5.0])
    0.0
    """
    finite = [x for x in values if math.isfinite(x)]
    n = len(finite)
    pairs = itertools.combinations(finite, 2)
    score = sum((later > x) - (later < x) for x, later in pairs)
    if not score:
        return 0.0
    ties = sum(t * (t - 1) * (2 * t + 5) for t in Counter(finite).values())
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18
    return (score - math.copysign(1, score)) / math.sqrt(variance)


def _alarm(monitor: str, rows: Sequence[Sequence[float]], rising: Sequence[tuple[str, Sequence[float]]]) -> str:
    noun = "reward" if len(rising) == 1 else "rewards"
    rose = " and ".join(f"'{name}' went from {_ends(column)}" for name, column in rising)
    fell = _ends([row[1] for row in rows])
    return (
        f"Reward hacking? From step {int(rows[0][0])} to {int(rows[-1][0])} the trained {noun} {rose}, while the "
        f"monitor '{monitor}' went from {fell} (means of the first and the last third). Look at the samples; a larger "
        "kl_coef, a lower learning rate, fewer steps or the monitor in the mix are the usual remedies."
    )


def _ends(column: Sequence[float]) -> str:
    finite = [x for x in column if math.isfinite(x)]
    third = max(1, len(finite) // 3)
    return f"{math.fsum(finite[:third]) / third:.3g} to {math.fsum(finite[-third:]) / third:.3g}"
