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

_SOURCES: dict[By, str] = {"votes": "votes", "model": "the model", "nobody": "nobody", "sameness": "all alike"}


def panels(run: RunHistory) -> list[Panel]:
    """A panel for each question that the run has asked."""
    box = BallotBox(run.folder)
    rows = defaultdict(list)
    for row in box.scored():
        rows[row.ballot.question].append(row)
    votes = box.votes()
    return [_panel(own, [vote for vote in votes if vote.ballot.question == question]) for question, own in rows.items()]


def _panel(rows: Sequence[Scored], votes: Sequence[Vote]) -> Panel:
    counts = Counter(row.by for row in rows)
    text = [f"{plural(counts['votes'], 'group')} of {len(rows):,} have their scores from people."]
    if counts["model"]:
        text.append(f"The model of the voter answered for {plural(counts['model'], 'group')} without asking.")
    if counts["nobody"]:
        text.append(f"{plural(counts['nobody'], 'group')} got no answer in time, and taught nothing.")
    text += [_about_voters(votes), _about_model(rows)]
    by_step: dict[int, list[Scored]] = defaultdict(list)
    for row in rows:
        by_step[row.ballot.step].append(row)
    table = PanelTable(
        caption="How groups got their scores",
        head=["step", *_SOURCES.values(), "pairs that the model got right"],
        rows=[[step, *_sources(own), _mean(_shares(own))] for step, own in by_step.items()],
    )
    return Panel(title=f"Votes: {rows[0].ballot.question}", text=[*filter(None, text)], tables=[table])


def _about_voters(votes: Sequence[Vote]) -> str:
    agreed = agreement(votes)
    if not agreed.repeats:
        return ""
    same = f"Asked a second time, people gave the same answer to {agreed.same} of {plural(agreed.repeats, 'question')}"
    if agreed.better:
        return f"{same}; answers at random would do so for {agreed.chance:.0%}."
    if agreed.better is None:
        return f"{same}, too few to tell."
    return f"{same}, which is no better than chance ({agreed.chance:.0%}): a run learns nothing from such votes."


def _about_model(rows: Sequence[Scored]) -> str:
    """How often the model was right about groups before it learned from them."""
    shares = _shares(rows)
    mean = _mean(shares)
    if mean is None:
        return ""
    width = half_width(shares, range(len(shares)))
    interval = f" ± {100 * width:.0f} %" if len(shares) > 1 else ""
    return (
        f"The model orders {100 * mean:.0f} %{interval} of all pairs as people do. This is measured on "
        f"{plural(len(shares), 'group')} that it had not learned from, and that were not chosen for its doubts."
    )


def _sources(rows: Sequence[Scored]) -> list[int]:
    counts = Counter(row.by for row in rows)
    return [counts[by] for by in _SOURCES]


def _shares(rows: Sequence[Scored]) -> list[float]:
    shares = [right_share(row) for row in rows]
    return [share for share in shares if share is not None]


def _mean(shares: Sequence[float]) -> float | None:
    return sum(shares) / len(shares) if shares else None
