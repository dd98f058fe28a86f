"""Before and after: mean scores on held-out prompts, how far apart they are, and whether that can be chance.

Two evaluations of one run have the same prompts and the same draws, so the interval that counts is that of the paired
differences. The intervals of both means say how well each is known; they are too wide to compare them by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from grpokit.errors import counted
from grpokit.evaluation.intervals import Mean, half_width, mean_of_totals
from grpokit.run_folder.reader import Row, Run
from grpokit.run_folder.rows import Scores

Verdict = Literal["better", "worse", "even", "unknown"]
_Difference: TypeAlias = tuple[float | None, float | None]  # the mean of differences, and half its interval


@dataclass(frozen=True, kw_only=True)
class Change:
    """One score before and after; None if there is no number.

    Attributes:
        name: of the reward, or "reward" for the weighted sum.
        before: mean.
        after: mean.
        before_width: half the 95 % confidence interval.
        after_width: the same for `after`.
        change: mean difference.
        width: half the 95 % confidence interval of the difference.
        paired: whether it is the interval of paired differences; otherwise it is the sum of both, which is too wide.
        verdict: "even" where the change is smaller than its interval; "unknown" without an interval, and for a sum of
            which a part is missing.
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
    return changes(*_ends(run))


def missing(run: Run) -> list[str]:
    """What of the trained rewards is missing in the headline."""
    return unscored(*_ends(run)) if run.evaluations else []


def _ends(run: Run) -> tuple[Row, Row, Scores | None, Scores | None, dict[str, float]]:
    first = run.evaluations[0]
    last = run.evaluations[-1]
    old = run.scored(first["step"])
    new = run.scored(last["step"])
    weights = {name: weight for name, weight in run.weights.items() if name in last}  # a phase may have others
    return first, last, old, new, weights


def moved(run: Run) -> dict[str, Any] | None:
    """What `grpokit attribute` has found: the cells of a table.

    For a step that was analysed twice, the later result is shown.
    """
    latest = {}
    for row in run.attributions:
        latest[row["step"], row["row"], row["group"]] = row
    if not latest:
        return None
    body = []
    for row in latest.values():
        for name, own in row["shares"].items():
            body.append([row["step"], name, *_shares(own)])
    last = run.attributions[-1]
    head = ["after step", "reward", last["row"], last["group"], "both", "std"]
    return {"head": head, "body": body}


def _shares(own: Mapping[str, float]) -> list[str]:
    """The shares of a reward's variance and its standard deviation, as text."""
    parts = [f"{own[part]:.0%}" if own["variance"] else "–" for part in ("row", "group", "both")]
    return [*parts, f"{own['variance'] ** 0.5:.3g}"]


def changes(
    before: Row, after: Row, old: Scores | None, new: Scores | None, weights: Mapping[str, float]
) -> list[Change]:
    """Compare two evaluations.

    Args:
        before: row of `eval.jsonl`.
        after: the other row.
        old: all scores of `before`, where they were kept.
        new: all scores of `after`, where they were kept.
        weights: name -> weight; a lower score is better where it is negative.
    """
    parts = {name: weight for name, weight in weights.items() if name != "reward"}
    gaps = unscored(before, after, old, new, parts)
    rows = []
    for name, weight in weights.items():
        paired = _paired(old, new, name, parts)
        change, width = paired or _unpaired(before, after, name)
        verdict = _verdict(change, width, weight)
        rows.append(
            Change(
                name=name,
                before=before.get(name),
                after=after.get(name),
                before_width=before.get(f"{name}/ci95"),
                after_width=after.get(f"{name}/ci95"),
                change=change,
                width=width,
                paired=paired is not None,
                verdict="unknown" if name == "reward" and gaps else verdict,
                monitor=weight == 0,
            )
        )
    return rows


def _paired(old: Scores | None, new: Scores | None, name: str, parts: Mapping[str, float]) -> _Difference | None:
    """Row by row; None where the scores of both evaluations do not belong to the same prompts."""
    if old is None or new is None:
        return None
    if (old.prompts, old.prompt) != (new.prompts, new.prompt):
        return None
    shared = old.scores.keys() & new.scores.keys()
    if name not in shared:
        return None
    if name == "reward" and parts.keys() <= shared:
        difference = _total(new, parts).minus(_total(old, parts))
        return _number(difference.value), _number(difference.half_width)
    before = _column(old, name)
    after = _column(new, name)
    differences = [y - x for x, y in zip(before, after, strict=True)]
    finite = [x for x in differences if not math.isnan(x)]
    mean = math.fsum(finite) / len(finite) if finite else None
    return mean, _number(half_width(differences, old.prompt))


def _unpaired(before: Row, after: Row, name: str) -> _Difference:
    if before.get(name) is None or after.get(name) is None:
        return None, None
    change = _number(after[name] - before[name])
    before_width = before.get(f"{name}/ci95")
    after_width = after.get(f"{name}/ci95")
    if before_width is None or after_width is None:
        return change, None
    return change, _number(before_width + after_width)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def unscored(
    before: Row, after: Row, old: Scores | None, new: Scores | None, weights: Mapping[str, float]
) -> list[str]:
    """Words for each trained reward that did not score all samples of two evaluations; arguments as for `changes`."""
    found = []
    for name, weight in weights.items():
        if not weight or name == "reward":
            continue
        if before.get(name) is None or after.get(name) is None:
            found.append(f"{name} scored no sample")
            continue
        counts = []
        for scored in (old, new):
            column = scored.scores.get(name, []) if scored is not None else []
            if None in column:
                counts.append((len(column) - column.count(None), len(column)))
        if counts:
            fewest, rows = min(counts)
            found.append(f"{name} scored {fewest:,} of {counted(rows, 'sample')}")
    return found


def _total(scored: Scores, weights: Mapping[str, float]) -> Mean:
    columns = [_column(scored, name) for name in weights]
    return mean_of_totals(columns, weights.values(), scored.prompt)


def _column(scored: Scores, name: str) -> list[float]:
    """A reward's scores; NaN for a missing one."""
    return [math.nan if score is None else score for score in scored.scores[name]]


def _verdict(change: float | None, width: float | None, weight: float) -> Verdict:
    if change is None or width is None:
        return "unknown"
    if abs(change) <= width:
        return "even"
    return "better" if (change > 0) == (weight >= 0) else "worse"


def hacking(rows: Sequence[Change]) -> str:
    """An alarm where a trained reward got better on held-out prompts and a monitor worse, both beyond chance."""
    better = [c for c in rows if not c.monitor and c.verdict == "better"]
    named = [c for c in better if c.name != "reward"] or better
    worse = [c for c in rows if c.monitor and c.verdict == "worse"]
    if not (named and worse):
        return ""
    return (
        f"Reward hacking? On held-out prompts the trained {_noun('reward', named)} {_in_words(named)}, while the "
        f"{_noun('monitor', worse)} {_in_words(worse)}. Look at the samples: the policy may raise the score in a way "
        "that nobody wants."
    )


def _noun(word: str, changes: Sequence[Change]) -> str:
    return word if len(changes) == 1 else f"{word}s"


def _in_words(changes: Sequence[Change]) -> str:
    return " and ".join(f"'{c.name}' changed by {c.change:+.3g} ± {c.width:.2g}" for c in changes)


def prompts_of(run: Run) -> int | None:
    """How many held-out prompts the last evaluation had, where that was kept."""
    scored = run.scored(run.evaluations[-1]["step"]) if run.evaluations else None
    return len(set(scored.prompt)) if scored is not None else None
