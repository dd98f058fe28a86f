"""The panel "Why" of a run whose reward did not rise: what a probe has found or, without one, what was logged."""

from __future__ import annotations

import json
import shlex
from typing import Any

from grpokit import Panel, PanelTable
from grpokit.run_folder.reader import RunHistory
from grpokit_diagnosis.diagnosis import check_of, diagnosis_of, minutes_of, place_of
from grpokit_diagnosis.evidence import Cause
from grpokit_diagnosis.symptom import NOT_HELD_BACK

SAVED = "diagnosis.json"
"""What a probe leaves in a run folder."""
_KEYS = ("steps", "course", "symptom", "answer", "probed", "causes", "other", "fine", "measured")


def why(run: RunHistory) -> list[Panel]:
    """The panel of a run that was probed, or has ended without a gain; none where the reward rose and all is well."""
    if run.state == "running" or not run.planned or not run.metrics:
        return []
    content = _saved(run)
    if content is None:
        content = diagnosis_of(run, probe=False, say=print).as_json()
        if content["course"] in NOT_HELD_BACK and not content["causes"]:
            return []
    causes = [Cause(**cause) for cause in content["causes"]]
    text = [content["answer"], content["symptom"]]
    if not content["probed"]:
        command = shlex.join(["grpokit", "diagnose", str(place_of(run)), "--probe"])
        text.append(f"This is read from the log. To measure as well: `{command}`")
    tables = [_table_of(run, number, cause) for number, cause in enumerate(causes, 1)]
    if content["measured"]:
        points = content["measured"]["search"]
        lengths = [[f"{point['length']:g}", point["gain"], point["width"]] for point in points]
        head = ["length of the step", "gain", "±"]
        tables.append(PanelTable(caption="Steps along one update, on held-out prompts", head=head, rows=lengths))
    for caption, looks in (("Seen as well", content["other"]), ("Looked at and fine", content["fine"])):
        rows = [[look["topic"], look["figures"]] for look in looks]
        if rows:
            tables.append(PanelTable(caption=caption, head=["what", "seen"], rows=rows))
    return [Panel(title="Why", text=text, tables=tables)]


def _table_of(run: RunHistory, number: int, cause: Cause) -> PanelTable:
    """What was seen of a cause, and what to do."""
    when = "" if cause.overrides else "once that is changed, "
    rows = [
        ["seen", cause.figures],
        ["what to do", cause.advice],
        ["to check", f"{when}about {minutes_of(run):.0f} min: `{check_of(run, cause)}`"],
    ]
    return PanelTable(caption=f"{number}. {cause.title}", head=["", "cause"], rows=rows)


def _saved(run: RunHistory) -> dict[str, Any] | None:
    """What a probe has found after the run's last step; None without one."""
    try:
        content = json.loads((run.folder / SAVED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(content, dict) and {*_KEYS} <= {*content}
    return content if whole and content["steps"] == run.steps else None
