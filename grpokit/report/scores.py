"""Before and after: mean scores on held-out prompts, how far apart they are, and whether that can be chance.

Two evaluations of one run have the same prompts and the same draws, so the interval that counts is that of the paired
differences. The intervals of both means say how well each is known; they are too wide to compare them by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from grpokit.evaluation.intervals import Mean, half_width, mean_of_totals
from grpokit.report.reading import Row, Run, Scored

Verdict = Literal["better", "worse", "even", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One score before and after; None where there is no figure.

    Attributes:
        name: of the reward, or "reward" for the weighted sum.
        before: mean.
        after: mean.
        before_width: half the 95 % confidence interval.
        after_width: likewise.
        change: mean difference.
        width: half its 95 % confidence interval.
        paired: whether that is of paired differences; else both intervals were added, which makes it too wide.
        verdict: "even" where the change is smaller than its interval; "unknown" without an interval.
        monitor: whether the reward is only measured.
    """

    name: str
    before: float | None
    after: float | None
    before_width: float | None
    after_width: float | None
    change: float | None
    width: float | None
    paired: bool
    verdict: Verdict
    monitor: bool = False


def headline(run: Run) -> list[Change]:
    """The first and the last evaluation of a run."""
    if not run.evaluations:
        return []
    first, last = run.evaluations[0], run.evaluations[-1]
    return changes(first, last, run.scored(first["step"]), run.scored(last["step"]), run.weights)


def changes(
    before: Row, after: Row, old: Scored | None, new: Scored | None, weights: Mapping[str, float]
) -> list[Change]:
    """Compare two evaluations.

    Args:
        before: row of `eval.jsonl`.
        after: likewise.
        old: all scores of the one before, where they were kept.
        new: of the one after.
        weights: name -> weight; a lower score is better where it is negative.
    """
    paired = old is not None and new is not None and (old.prompts, old.prompt) == (new.prompts, new.prompt)
    parts = {name: weight for name, weight in weights.items() if name != "reward"}
    found = []
    for name, weight in weights.items():
        means = before.get(name), after.get(name)
        widths = before.get(f"{name}/ci95"), after.get(f"{name}/ci95")
        change = width = None
        matched = paired and old is not None and new is not None and name in old.scores and name in new.scores
        if matched and old is not None and new is not None:
            if name == "reward" and all(part in old.scores and part in new.scores for part in parts):
                difference = _total(new, parts).minus(_total(old, parts))
                change, width = difference.value, difference.half_width
            else:
                differences = _differences(old.scores[name], new.scores[name])
                known = [x for x in differences if not math.isnan(x)]
                change = math.fsum(known) / len(known) if known else math.nan
                width = half_width(differences, old.prompt)
        elif means[0] is not None and means[1] is not None:
            change = means[1] - means[0]
            if widths[0] is not None and widths[1] is not None:
                width = widths[0] + widths[1]
        change, width = (None if x is None or math.isnan(x) else x for x in (change, width))
        found.append(
            Change(
                name=name,
                before=means[0],
                after=means[1],
                before_width=widths[0],
                after_width=widths[1],
                change=change,
                width=width,
                paired=matched,
                verdict=_verdict(change, width, weight),
                monitor=weight == 0,
            )
        )
    return found


def _total(scored: Scored, weights: Mapping[str, float]) -> Mean:
    columns = [[math.nan if x is None else x for x in scored.scores[name]] for name in weights]
    return mean_of_totals(columns, weights.values(), scored.prompt)


def _differences(old: Sequence[float | None], new: Sequence[float | None]) -> list[float]:
    """Differences row by row; NaN where one of both is missing."""
    return [math.nan if x is None or y is None else y - x for x, y in zip(old, new, strict=True)]


def _verdict(change: float | None, width: float | None, weight: float) -> Verdict:
    if change is None or width is None:
        return "unknown"
    if abs(change) <= width:
        return "even"
    return "better" if (change > 0) == (weight >= 0) else "worse"


def hacking(found: Sequence[Change]) -> str:
    """An alarm where a trained reward got better on held-out prompts and a monitor worse, both beyond chance."""
    better = [c for c in found if not c.monitor and c.verdict == "better"]
    named = [c for c in better if c.name != "reward"] or better
    worse = [c for c in found if c.monitor and c.verdict == "worse"]
    if not (named and worse):
        return ""
    trained = "is trained on" if len(named) == 1 else "are trained on"
    return (
        f"Reward hacking? On held-out prompts {_changed(named)}, which {trained}, while {_changed(worse)}, only "
        "measured. Look at the samples: what raised the score may not be what was wanted."
    )


def _changed(found: Sequence[Change]) -> str:
    return " and ".join(f"'{c.name}' changed by {c.change:+.3g} ± {c.width:.2g}" for c in found)


def prompts_of(run: Run) -> int | None:
    """How many held-out prompts the last evaluation had, where that was kept."""
    scored = run.scored(run.evaluations[-1]["step"]) if run.evaluations else None
    return len(set(scored.prompt)) if scored is not None else None
