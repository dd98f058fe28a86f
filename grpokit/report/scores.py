"""What a run did to its scores on held-out prompts, and what the report warns of.

`grpokit.evaluation.paired` has the differences and their intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpokit.evaluation.paired import Change, ScoreTable, changes, unscored_rewards
from grpokit.run_folder.reader import Row, RunHistory


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
