"""The picture that sums up a run: its names stand beside its curves, whatever they are."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from grpokit import report
from grpokit.report import figure
from made_runs import make_run, read_rows, write_rows

LONG = "the-agreement-of-the-picture-with-" + "very-" * 12 + "long prompts"
MANY = (LONG, "W" * 70, "日本語の報酬", *(f"r{i}" for i in range(8)))


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A run of 14 lines: the weighted sum and 13 rewards."""
    folder = make_run(tmp_path / "run")
    metrics = {f"rewards/{name}/mean": i / 20 for i, name in enumerate(MANY)}
    means = {name: i / 20 for i, name in enumerate(MANY)}
    write_rows(folder / "metrics.jsonl", [{**row, **metrics} for row in read_rows(folder / "metrics.jsonl")])
    evaluations = [{**row, "means": {**row["means"], **means}} for row in read_rows(folder / "eval.jsonl")]
    write_rows(folder / "eval.jsonl", evaluations)
    return folder


@pytest.mark.parametrize("pictures", [True, False])
def test_the_names_in_the_picture_of_a_run_are_beside_its_curves(many: Path, *, pictures: bool) -> None:
    if not pictures:
        shutil.rmtree(many / "samples")
    drawn = figure(many)
    area = drawn.subfigs[1] if pictures else drawn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the font lacks letters of a name
        drawn.draw_without_rendering()
        axes, legend = drawn.axes[0].get_tightbbox(), area.legends[0].get_window_extent()
    assert area.bbox.x0 <= legend.x0 < legend.x1 <= area.bbox.x1
    assert 0 <= legend.y0 < legend.y1 <= axes.y0
    assert axes.height > 150  # of 440


def test_no_two_lines_look_alike(many: Path) -> None:
    lines = figure(many).axes[0].lines
    assert len({(line.get_color(), str(line._unscaled_dash_pattern)) for line in lines}) == len(lines) == 6
    widths = [line.get_linewidth() for line in lines]
    assert widths == sorted(widths, reverse=True)  # so that equal lines are all seen


def test_names_in_a_script_that_the_font_lacks_are_no_warnings(many: Path) -> None:
    """Warnings are errors in this suite; a browser has fonts for them."""
    assert report.write(many).with_suffix(".png").is_file()


def test_an_error_in_drawing_costs_the_picture_alone(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: object) -> None:
        raise ValueError("no such font")

    before = {path.name for path in many.iterdir()}
    monkeypatch.setattr("grpokit.report.run_figure.drawn", failing)
    with pytest.raises(ValueError, match="no such font"):
        report.write(many)
    assert {path.name for path in many.iterdir()} == before | {"report.html"}
