"""The panel "Why" of a run whose reward did not rise: what a probe has found or, without one, what was logged."""

from __future__ import annotations

import json
from typing import Any

from grpokit import Panel, PanelTable
from grpokit.run_folder.reader import RunHistory
from grpokit_diagnosis.diagnosis import diagnosis_of, place_of

SAVED = "diagnosis.json"
"""What a probe leaves in a run folder."""
_KEYS = ("steps", "course", "symptom", "probed", "causes", "fine", "measured")


def why(run: RunHistory) -> list[Panel]:
    """The panel of a run that has ended; none where the reward rose and nothing was found."""
    if run.state == "running" or not run.planned or not run.metrics:
        return []
    content = _saved(run) or diagnosis_of(run, probe=False, say=print).as_json()
    if content["course"] in ("rising", "unknown") and not content["causes"]:
        return []
    causes = content["causes"]
    text = [causes[0]["title"] if causes else "No cause was found in what was looked at.", content["symptom"]]
    if not content["probed"]:
        text.append(f"This is read from what was logged. `grpokit diagnose {place_of(run)} --probe` also measures.")
    tables = []
    if causes:
        rows = [[cause["title"], cause["figures"], cause["advice"], cause["check"]] for cause in causes]
        tables.append(PanelTable(caption="Causes", head=["cause", "seen", "what to do", "to check"], rows=rows))
    if content["measured"]:
        points = content["measured"]["search"]
        lengths = [[f"{point['length']:g}", point["gain"], point["width"]] for point in points]
        head = ["length of the step", "gain", "±"]
        tables.append(PanelTable(caption="Steps along one update, on held-out prompts", head=head, rows=lengths))
    rows = [[look["topic"], look["figures"]] for look in content["fine"]]
    tables.append(PanelTable(caption="Looked at and fine", head=["what", "seen"], rows=rows))
    return [Panel(title="Why", text=text, tables=tables)]


def _saved(run: RunHistory) -> dict[str, Any] | None:
    """What a probe has found after the run's last step; None without one."""
    try:
        content = json.loads((run.folder / SAVED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(content, dict) and {*_KEYS} <= {*content}
    return content if whole and content["steps"] == run.steps else None
