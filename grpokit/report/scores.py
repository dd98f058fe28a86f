"""Before and after: mean scores on held-out prompts, how far apart they are, and whether that can be chance.

Two evaluations of one run have the same prompts, so the interval that counts is that of differences paired by prompt.
The intervals of both means say how well each is known; they are too wide to compare them by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grpokit.errors import plural
from grpokit.evaluation.intervals import Mean, mean_of_totals
from grpokit.run_folder.reader import Row, RunHistory
from grpokit.run_folder.rows import ScoreTable

Verdict = Literal["better", "worse", "even", "unknown"]


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
        paired: whether both have the same prompts, so that differences are paired by prompt.
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


def headline(run: RunHistory) -> list[Change]:
    """The first and the last evaluation of a run."""
    if not run.evaluations:
        return []
    return changes(*_ends(run))


def missing_rewards(run: RunHistory) -> list[str]:
    """What of the trained rewards is missing in the headline."""
    return unscored_rewards(*_ends(run)) if run.evaluations else []


def _ends(run: RunHistory) -> tuple[Row, Row, ScoreTable | None, ScoreTable | None, dict[str, float]]:
    first = run.evaluations[0]
    last = run.evaluations[-1]
    old = run.scored(first["step"])
    new = run.scored(last["step"])
    weights = {name: weight for name, weight in run.weights.items() if name in last["means"]}  # a phase may have others
    return first, last, old, new, weights


def attribution_table(run: RunHistory) -> dict[str, Any] | None:
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
    before: Row, after: Row, old: ScoreTable | None, new: ScoreTable | None, weights: Mapping[str, float]
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
    gaps = unscored_rewards(before, after, old, new, parts)
    paired = old is not None and new is not None and set(old.prompts) == set(new.prompts)
    rows = []
    for name, weight in weights.items():
        change, width = _difference(before, after, old, new, name, parts)
        verdict = _verdict(change, width, weight)
        rows.append(
            Change(
                name=name,
                before=before["means"].get(name),
                after=after["means"].get(name),
                before_width=before["ci95"].get(name),
                after_width=after["ci95"].get(name),
                change=change,
                width=width,
                paired=paired,
                verdict="unknown" if name == "reward" and gaps else verdict,
                monitor=weight == 0,
            )
        )
    return rows


def _difference(
    before: Row, after: Row, old: ScoreTable | None, new: ScoreTable | None, name: str, parts: Mapping[str, float]
) -> tuple[float | None, float | None]:
    """How much a mean has changed, and half of the change's interval: None without the scores of all samples."""
    if before["means"].get(name) is None or after["means"].get(name) is None:
        return None, None
    shared = old.scores.keys() & new.scores.keys() if old is not None and new is not None else set()
    columns = {name: 1.0}
    if name == "reward" and parts.keys() <= shared:
        columns = dict(parts)
    if old is None or new is None or not columns.keys() <= shared:
        return after["means"][name] - before["means"][name], None
    difference = _mean(new, columns).minus(_mean(old, columns))
    return _number(difference.value), _number(difference.half_width)


def _mean(scored: ScoreTable, weights: Mapping[str, float]) -> Mean:
    """The weighted sum of some columns, by the digests of their prompts."""
    prompts = [scored.prompts[place] for place in scored.prompt]
    columns = [_column(scored, name) for name in weights]
    return mean_of_totals(columns, weights.values(), prompts)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def unscored_rewards(
    before: Row, after: Row, old: ScoreTable | None, new: ScoreTable | None, weights: Mapping[str, float]
) -> list[str]:
    """Words for each trained reward that did not score all samples of two evaluations; arguments as for `changes`."""
    found = []
    for name, weight in weights.items():
        if not weight or name == "reward":
            continue
        if before["means"].get(name) is None or after["means"].get(name) is None:
            found.append(f"{name} scored no sample")
            continue
        counts = []
        for scored in (old, new):
            column = scored.scores.get(name, []) if scored is not None else []
            if None in column:
                counts.append((len(column) - column.count(None), len(column)))
        if counts:
            fewest, rows = min(counts)
            found.append(f"{name} scored {fewest:,} of {plural(rows, 'sample')}")
    return found


def _column(scored: ScoreTable, name: str) -> list[float]:
    """A reward's scores; NaN for a missing one."""
    return [math.nan if score is None else score for score in scored.scores[name]]


def _verdict(change: float | None, width: float | None, weight: float) -> Verdict:
    if change is None or width is None:
        return "unknown"
    if abs(change) <= width:
        return "even"
    return "better" if (change > 0) == (weight >= 0) else "worse"


def hacking_alarm(rows: Sequence[Change]) -> str:
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


def prompts_of(run: RunHistory) -> int | None:
    """How many held-out prompts the last evaluation had, where that was kept."""
    scored = run.scored(run.evaluations[-1]["step"]) if run.evaluations else None
    return len(set(scored.prompt)) if scored is not None else None
