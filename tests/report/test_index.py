"""The index of a folder of runs: what is listed, where its links lead, and which reports are written on the way."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from command_line import Call, Done
from grpokit import UsageError, report
from made_runs import EVIL, make_run, read_rows, write_rows


def rows_of(page: Path) -> dict[str, dict[str, Any]]:
    """Name -> row of the page's table."""
    content = re.search(r'id="view">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert content
    return {row["name"]: row for row in json.loads(content[1])["runs"]}


def test_it_lists_the_runs_of_a_folder_and_of_the_sweeps_in_it(tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    make_run(tmp_path / "rates" / "low")
    make_run(tmp_path / "rates" / "deeper" / "run")
    make_run(tmp_path / "one" / "evaluations" / "again")  # what `grpokit evaluate` keeps in a run
    (tmp_path / "notes").mkdir()
    (tmp_path / "file.txt").touch()
    assert list(report.runs_in(tmp_path)) == ["one", "rates/low"]
    assert report.runs_in(tmp_path / "one") == report.runs_in(tmp_path / "nowhere") == {}
    assert list(report.runs_in(tmp_path / "rates")) == ["deeper/run", "low"]


def test_a_row_says_what_the_run_did(tmp_path: Path) -> None:
    better = make_run(tmp_path / "better", gain=0.4)
    settings = yaml.safe_load((better / "config.yaml").read_text())
    (better / "config.yaml").write_text(yaml.safe_dump(settings | {"policy": {"use": "tiny"}}))
    make_run(tmp_path / "worse", gain=-0.4)
    stopped = make_run(tmp_path / "stopped")
    (stopped / "end.json").unlink()
    (stopped / "eval.jsonl").unlink()
    begun = make_run(tmp_path / "begun")
    write_rows(begun / "eval.jsonl", read_rows(begun / "eval.jsonl")[:1])
    rows = rows_of(report.write_index(tmp_path))
    assert rows["begun"]["score"]["after"] > 0
    assert rows["begun"]["score"]["before"] is rows["begun"]["score"]["change"] is None
    assert rows["better"]["score"]["name"] == "reward"
    assert rows["better"]["score"]["change"] == pytest.approx(0.4, abs=0.01)
    told = {
        name: (row["state"], row["steps"], row["planned"], row["policy"], row["mood"]) for name, row in rows.items()
    }
    assert told == {
        "better": ("finished", 4, 4, "tiny", "better"),
        "worse": ("finished", 4, 4, "", "worse"),
        "stopped": ("stopped", 4, 4, "", ""),
        "begun": ("finished", 4, 4, "", ""),
    }
    assert rows["stopped"]["score"] is None


def test_reports_that_are_missing_or_out_of_date_are_written(tmp_path: Path) -> None:
    old, new = make_run(tmp_path / "old"), make_run(tmp_path / "new")
    said: list[str] = []
    report.write_index(tmp_path, say=said.append)
    assert said == [f"report: {new / 'report.html'}", f"report: {old / 'report.html'}"]
    report.write_index(tmp_path, say=said.append)
    assert len(said) == 2
    rows = read_rows(old / "metrics.jsonl")
    write_rows(old / "metrics.jsonl", [*rows, {**rows[-1], "step": 5}])
    later = (old / "report.html").stat().st_mtime + 5
    os.utime(old / "metrics.jsonl", (later, later))
    report.write_index(tmp_path, say=said.append)
    assert said[2:] == [f"report: {old / 'report.html'}"]


def test_links_lead_to_the_reports_whatever_folders_are_called(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    names = ["javascript:alert(1)", "a b#c?d%20", "é"]
    for name in names:
        make_run(runs / name)
    for out in (None, tmp_path / "pages" / "all.html"):
        page = report.write_index(runs, out=out)
        for row in rows_of(page).values():
            assert not re.search(r"[:#? ]", row["link"])
            assert (page.parent / unquote(row["link"])).resolve() == runs / row["name"] / "report.html"


def test_a_run_that_cannot_be_read_has_a_row_that_says_why(tmp_path: Path) -> None:
    make_run(tmp_path / "good", name=EVIL)
    (make_run(tmp_path / "bad") / "eval.jsonl").write_text("{\n")
    rows = rows_of(report.write_index(tmp_path))
    assert "eval.jsonl, line 1, is damaged" in rows["bad"]["error"]
    assert rows["good"]["state"] == "finished"


def test_it_has_no_charts_and_replaces_no_other_page(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    page = report.write_index(tmp_path)
    assert page.stat().st_size < 50_000
    assert report.write_index(tmp_path) == page
    page.write_text("<title>my site</title>")
    with pytest.raises(UsageError, match=r"index\.html exists already and is no report.*--out"):
        report.write_index(tmp_path)
    with pytest.raises(UsageError, match="has no run folder"):
        report.write_index(tmp_path / "run")


def test_the_command(tmp_path: Path, call: Call) -> None:
    make_run(tmp_path / "runs" / "a")
    assert call("report", "runs") == Done(0, "report: runs/a/report.html\nindex: runs/index.html\n", "")
    assert call("report", "runs", "runs/a").code == 2
    (tmp_path / "empty").mkdir()
    assert "is not a run folder: it has no config.yaml" in call("report", "empty").err
