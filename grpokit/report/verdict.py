"""What a run did to its scores on held-out prompts, in words: a verdict, and what the report warns of.

`grpokit.evaluation.paired` has the differences and their intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpokit.evaluation.paired import Change, ScoreTable, changes, unscored_rewards
from grpokit.run_folder.reader import Row, RunHistory


def headline(run: RunHistory) -> list[Change]:
    """How scores changed from a run's first to its last evaluation; of a statistic no change is better."""
    if not run.evaluations:
        return []
    found = changes(*_ends(run))
    return [replace(change, verdict="unknown") if _describes(run, change) else change for change in found]


def _describes(run: RunHistory, change: Change) -> bool:
    return change.monitor and change.name in run.statistics


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


def main_change(scores: Sequence[Change]) -> Change | None:
    """The change that the verdict is about: of the whole reward, which comes first, or of the only trained one."""
    return next((change for change in scores if not change.monitor), None)


def verdict(run: RunHistory, scores: Sequence[Change], same: str) -> str:
    """What training did to the reward on held-out prompts, which monitors fell, and what is missing.

    Args:
        run: the run.
        scores: its headline.
        same: from `sameness`.
    """
    change = main_change(scores)
    if change is None:
        if not run.metrics:
            return "Training has not begun yet." if run.state == "running" else "No step was trained."
        if not run.evaluations:
            return f"There is no evaluation on held-out prompts{' yet' if run.state == 'running' else ''}."
        return ". ".join(["No reward is trained", *moved_monitors(scores)]) + "."
    name = "Rewards" if change.name == "reward" else f"The reward {change.name}"
    if change.after is None:
        return ". ".join([f"{name} could not be scored on held-out prompts", *moved_monitors(scores)]) + "."
    if len(run.evaluations) == 1:
        where = run.label(run.evaluations[0]["step"])
        return f"{name}, {where}: {format_score(change.after, change.after_width)}. Nothing to compare with."
    if change.change is None:
        return f"{name} cannot be compared with the first evaluation."
    gaps = missing_rewards(run)
    moved_by = {
        "better": "rose" if change.change > 0 else "fell, as intended by its negative weight",
        "worse": "fell" if change.change < 0 else "rose, although its weight is negative",
        "even": "did not change clearly",
        "unknown": "went",
    }
    sentences = [f"{name} {moved_by['unknown' if gaps else change.verdict]}: {_numbers(change)}"]
    if hacking_alarm(scores):
        fell = [f"{monitor.name} fell: {_numbers(monitor)}" for monitor in _fallen_monitors(scores)]
        sentences.append(f"But {' and '.join(fell)}")
    if same:
        sentences.append(f"But {same}")
    if gaps:
        sentences.append(f"Part is missing: {' and '.join(gaps)}")
    return ". ".join(sentences)


def moved_monitors(scores: Sequence[Change]) -> list[str]:
    """What the monitors did, which is all that is known where no trained reward is scored."""
    moved = {"better": "rose", "worse": "fell", "even": "did not change clearly"}  # a statistic just went
    monitors = [change for change in scores if change.monitor and change.change is not None]
    return [
        f"The monitor {monitor.name} {moved.get(monitor.verdict, 'went')}: {_numbers(monitor)}" for monitor in monitors
    ]


def _numbers(change: Change) -> str:
    difference = format_score(change.change, change.width, sign="+")
    return f"{format_score(change.before)} → {format_score(change.after)} ({difference})"


def mood_of(run: RunHistory, scores: Sequence[Change], same: str) -> str:
    """The verdict in one word, for its colour; empty where it has none. Arguments as for `verdict`."""
    if alarms(scores, same):
        return "alarmed"
    change = main_change(scores)
    return "" if change is None or missing_rewards(run) else change.verdict


def format_score(value: float | None, width: float | None = None, *, sign: str = "") -> str:
    """A score as text, with half of its interval where it has one.

    >>> format_score(0.5, 0.04), format_score(-0.25, sign="+"), format_score(0.00012), format_score(None)
    ('0.500 ± 0.040', '-0.250', '0.00012', '–')
    """
    if value is None:
        return "–"
    fits = value == 0 or 0.001 <= abs(value) < 1e6
    text = format(value, f"{sign}.3f" if fits else f"{sign}.2g")
    return text if width is None else f"{text} ± {format_score(width)}"


def alarms(scores: Sequence[Change], same: str) -> str:
    """Signs that a score is not what was wanted; arguments as for `verdict`."""
    one = f"Did all outputs become one? {same}. Look at them: the policy may no longer read its prompt." if same else ""
    return " ".join(filter(None, [hacking_alarm(scores), one]))


def hacking_alarm(scores: Sequence[Change]) -> str:
    """An alarm where a trained reward got better on held-out prompts and a monitor worse, both beyond chance."""
    better = [c for c in scores if not c.monitor and c.verdict == "better"]
    rewards = [c for c in better if c.name != "reward"] or better
    monitors = _fallen_monitors(scores)
    if not (rewards and monitors):
        return ""
    return (
        f"Reward hacking? On held-out prompts the trained {_in_words('reward', rewards)}, while the "
        f"{_in_words('monitor', monitors)}. Look at the samples: the policy may raise the score in a way that nobody "
        "wants."
    )


def _fallen_monitors(scores: Sequence[Change]) -> list[Change]:
    return [c for c in scores if c.monitor and c.verdict == "worse"]


def _in_words(noun: str, changes: Sequence[Change]) -> str:
    changed = [f"'{c.name}' changed by {c.change:+.3g} ± {c.width:.2g}" for c in changes]
    return f"{noun}{'s' * (len(changes) > 1)} {' and '.join(changed)}"


def prompts_of(run: RunHistory) -> int:
    """How many held-out prompts the last evaluation had; 0 where that was not kept."""
    scored = run.scored(run.evaluations[-1]["step"]) if run.evaluations else None
    return len(set(scored.prompt)) if scored else 0


def attribution_table(run: RunHistory) -> dict[str, Any] | None:
    """What `grpokit attribute` has found: the cells of a table.

    For a step that was analysed twice, the later result is shown.
    """
    if not run.attributions:
        return None
    latest = {}
    for row in run.attributions:
        latest[row["step"], row["row"], row["group"]] = row
    body = []
    for row in latest.values():
        for name, own in row["shares"].items():
            shares = [f"{own[part]:.0%}" if own["variance"] else "–" for part in ("row", "group", "both")]
            body.append([row["step"], name, *shares, f"{own['variance'] ** 0.5:.3g}"])
    last = run.attributions[-1]
    head = ["after step", "reward", last["row"], last["group"], "both", "std"]
    return {"head": head, "body": body}
