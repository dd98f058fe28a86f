"""What a run's page says about its votes: how groups got their scores, and how far votes and model can be trusted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from grpokit import Panel, PanelTable
from grpokit.errors import plural
from grpokit.evaluation.intervals import half_width
from grpokit.run_folder.reader import RunHistory
from grpokit_vote.answers import agreement, right_share
from grpokit_vote.ballots import BallotBox, By, Scored, Vote

_SOURCES: dict[By, str] = {
    "votes": "by votes",
    "model": "by the model",
    "nobody": "not scored",
    "sameness": "all alike",
}


def panels(run: RunHistory) -> list[Panel]:
    """A panel for each question that the run has asked."""
    box = BallotBox(run.folder)
    rows = defaultdict(list)
    for row in box.scored():
        rows[row.ballot.question].append(row)
    votes = defaultdict(list)
    for vote in box.votes():
        votes[vote.ballot.question].append(vote)
    return [_panel(own, votes[question]) for question, own in rows.items()]


def _panel(rows: Sequence[Scored], votes: Sequence[Vote]) -> Panel:
    counts = Counter(row.by for row in rows)
    parts = [f"{counts[by]:,} {words}" for by, words in _SOURCES.items() if counts[by]]
    text = [f"Of {plural(len(rows), 'group')}: {', '.join(parts)}.", *_about_voters(votes), *_about_model(rows)]
    by_step: dict[int, list[Scored]] = defaultdict(list)
    for row in rows:
        by_step[row.ballot.step].append(row)
    cells = []
    for step, own in by_step.items():
        counts = Counter(row.by for row in own)
        numbers = [counts[by] for by in _SOURCES]
        cells.append([step, *numbers, _mean(_shares(own))])
    head = ["step", *_SOURCES.values(), "model right"]
    table = PanelTable(caption="How groups got their scores", head=head, rows=cells)
    return Panel(title=f"Votes: {rows[0].ballot.question}", text=text, tables=[table])


def _about_voters(votes: Sequence[Vote]) -> list[str]:
    agreed = agreement(votes)
    if not agreed.repeats:
        return []
    same = f"Asked a second time, people gave the same answer to {agreed.same} of {plural(agreed.repeats, 'question')}"
    ends = {
        True: f"; answers at random would do so for {agreed.chance:.0%}.",
        False: f", which is no better than chance ({agreed.chance:.0%}): a run learns nothing from such votes.",
        None: ", which are too few to tell it from chance.",
    }
    return [same + ends[agreed.better]]


def _about_model(rows: Sequence[Scored]) -> list[str]:
    """How often the model was right about groups before it learned from them."""
    shares = _shares(rows)
    mean = _mean(shares)
    if mean is None:
        return []
    width = half_width(shares, range(len(shares)))
    interval = f" ± {100 * width:.0f} %" if len(shares) > 1 else ""
    return [
        f"The model orders {100 * mean:.0f} %{interval} of all pairs as people do. This is measured on "
        f"{plural(len(shares), 'group')} that it had not learned from, and that were not chosen for its doubts."
    ]


def _shares(rows: Sequence[Scored]) -> list[float]:
    shares = [right_share(row) for row in rows]
    return [share for share in shares if share is not None]


def _mean(shares: Sequence[float]) -> float | None:
    return sum(shares) / len(shares) if shares else None
