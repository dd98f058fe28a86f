"""What a run's page says of the heads of `reference-likeness`: what they told apart, and whether the policy copied."""

from __future__ import annotations

import re

import numpy as np

from grpokit import Panel, PanelTable
from grpokit.run_folder.reader import RunHistory

_MEANINGS = {
    "told_training": "pairs told right: training references and pictures",
    "told_held_out": "pairs told right: held-out references and pictures",
    "copies": "pictures nearer to a reference than two references are to each other",
    "covered": "training references that are the nearest of a picture",
}
_PARTS = ("first third", "second third", "last third")


def panels(run: RunHistory) -> list[Panel]:
    """A panel for each reward that learned from references."""
    names = [match[1] for name in run.keys if (match := re.fullmatch("rewards/(.+)/told_held_out", name))]
    return [_panel(run, name) for name in names]


def _panel(run: RunHistory, reward: str) -> Panel:
    thirds: dict[str, list[float | None]] = {}
    last = {}
    for key in _MEANINGS:
        name = f"rewards/{reward}/{key}"
        values = np.array([row[name] for row in run.metrics if name in row])
        parts = np.array_split(values, 3)
        thirds[key] = [float(part.mean()) if len(part) else None for part in parts]
        last[key] = next(value for value in reversed(thirds[key]) if value is not None)
    text = [
        f"At the end the head tells held-out references from the policy's pictures in {last['told_held_out']:.0%} of "
        f"pairs, and those that it has learned from in {last['told_training']:.0%}. At 50 % it cannot tell them; what "
        "the second has beyond the first is known by heart.",
        f"Of the pictures, {last['copies']:.0%} are nearer to a training reference than any two references are to each "
        f"other, and {last['covered']:.0%} of these references are the nearest of some picture.",
    ]
    rows = [[words, *thirds[key]] for key, words in _MEANINGS.items()]
    table = PanelTable(caption="The head and what it saw", head=["share of", *_PARTS], rows=rows)
    return Panel(title=f"References: {reward}", text=text, tables=[table])
