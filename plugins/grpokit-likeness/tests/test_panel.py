"""What the page of a run says of its heads."""

from pathlib import Path

import pytest

from grpokit.run_folder.reader import RunHistory
from grpokit_likeness.panel import panels

KEYS = ("told_training", "told_held_out", "copies", "covered")


def _run(*rows):
    metrics = [{"step": 1, "reward": 0.0}]
    for step, row in enumerate(rows, 2):
        own = {f"rewards/my/own/{key}": value for key, value in zip(KEYS, row, strict=True)}
        metrics.append({"step": step, "reward": 0.0, **own})
    return RunHistory(folder=Path("run"), config="", settings={}, versions="", metrics=metrics)


def test_thirds_of_a_run_are_compared():
    rows = [(1.0, 0.9, 0.0, 0.5), (0.8, 0.9, 0.0, 0.5), (0.9, 0.7, 0.1, 0.5), (0.9, 0.7, 0.1, 0.5)]
    (panel,) = panels(_run(*rows, (0.9, 0.5, 0.3, 0.25), (0.7, 0.5, 0.5, 0.25)))
    assert panel.title == "References: my/own"
    (table,) = panel.tables
    assert [row[1:] for row in table.rows] == [
        pytest.approx(row) for row in ([0.9, 0.9, 0.8], [0.9, 0.7, 0.5], [0, 0.1, 0.4], [0.5, 0.5, 0.25])
    ]
    assert "policy's pictures in 50% of pairs" in panel.text[0]
    assert "learned from in 80%" in panel.text[0]
    assert panel.text[1].startswith("Of the pictures, 40% are nearer")


def test_a_short_run_has_a_panel_and_another_has_none():
    (panel,) = panels(_run((1.0, 0.9, 0.0, 0.5)))
    assert panel.tables[0].rows[1][1:] == [0.9, None, None]
    assert "pictures in 90% of pairs" in panel.text[0]
    assert panels(_run()) == []
