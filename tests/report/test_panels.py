"""Panels of plugins on a run's page: what the view has of them, and that a wrong one costs nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpokit import Panel, PanelTable
from grpokit.report.pictures import Inlined
from grpokit.report.view import view
from grpokit.run_folder.reader import read_run
from made_plugins import install_only
from made_runs import make_run

SPEED = """
from grpokit import Panel, PanelTable, hookimpl

@hookimpl
def grpokit_panels(run):
    if run.steps > 2:
        rows = [("first", run.metrics[0]["step_time"], float("nan"))]
        table = PanelTable(caption="Seconds", head=["step", "s", "s before"], rows=rows)
        yield Panel(title="Speed", text=["It is fast.", "It was slow."], tables=[table])
"""


def viewed(*folders: Path) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = view([read_run(folder) for folder in folders], [Inlined()] * len(folders))["runs"]
    json.dumps(runs, allow_nan=False)
    return runs


def test_the_view_has_the_panels_of_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_only(tmp_path, monkeypatch, speed=SPEED)
    long = make_run(tmp_path / "long")
    short = make_run(tmp_path / "short", steps=2)
    first, second = viewed(long, short)
    table = {"caption": "Seconds", "head": ["step", "s", "s before"], "rows": [["first", 1.5, None]]}
    assert first["panels"] == [{"title": "Speed", "text": ["It is fast.", "It was slow."], "tables": [table]}]
    assert second["panels"] == []
    assert first["missing_panels"] == second["missing_panels"] == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("yield Panel(title='Half'); run.nothing", "has no attribute 'nothing'"),
        ("return ['a sentence']", "it returned a str; expected grpokit.Panel"),
        ("return [Panel(title='')]", "a panel needs a title, got ''"),
        ("return [Panel(title='T', text='one')]", "a list of paragraphs, got 'one'"),
        ("return [Panel(title='T', tables=[PanelTable(caption='c', head=['a'], rows=[[1, 2]])])]", "a row 2 cells"),
        ("return [Panel(title='T', tables=[PanelTable(caption='c', head=['a'], rows=[[{}]])])]", "expected text or a"),
    ],
)
def test_a_plugin_that_fails_costs_its_own_panels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    broken = f"from grpokit import Panel, PanelTable, hookimpl\n@hookimpl\ndef grpokit_panels(run):\n    {body}\n"
    install_only(tmp_path, monkeypatch, broken=broken, speed=SPEED)
    (run,) = viewed(make_run(tmp_path / "run"))
    assert [panel["title"] for panel in run["panels"]] == ["Speed"]
    (line,) = run["missing_panels"]
    assert line.startswith("A panel is missing, since plugin 'broken' failed in grpokit_panels: ")
    assert words in line
    assert run["verdict"]


def test_numbers_of_numpy_are_numbers() -> None:
    table = PanelTable(caption="c", head=["a", "b"], rows=[[np.float32(0.5), np.int64(2)]])
    assert Panel(title="T", tables=[table]).tables[0].rows == [[0.5, 2]]
