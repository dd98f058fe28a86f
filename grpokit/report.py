"""A run folder -> one self-contained HTML page that opens offline.

Reads only what the run wrote. Curves are inline SVG, pictures are embedded; everything that came from data is escaped
by the template. `figure` draws the same story as one picture, for a README.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import matplotlib.image
from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpokit.errors import UsageError

Rows = Sequence[Mapping[str, Any]]

_INK = "#8a8f98"  # axes and text in a grey that reads on white and on black
_COLOURS = ["#2a7de1", "#e0762f", "#2ca05a", "#b452cd", "#c7a008", "#d1495b"]
_ROWS_SHOWN, _COLUMNS_SHOWN = 8, 7


def write(run: Path) -> Path:
    """Write `report.html` (and `report.png`) into the run folder and return its path.

    Raises:
        UsageError: it is no run folder.
    """
    if not (run / "config.yaml").is_file():
        raise UsageError(f"{run} is no run folder: it has no config.yaml.")
    metrics, evaluations = read_rows(run / "metrics.jsonl"), read_rows(run / "eval.jsonl")
    names = _reward_names(metrics, evaluations)
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        files("grpokit").joinpath("templates/report.html").read_text(encoding="utf-8")
    )
    page = template.render(
        title=run.resolve().name,
        steps=metrics[-1]["step"] if metrics else 0,
        headline=_headline(evaluations, names),
        charts=[chart for chart in _charts(metrics, evaluations, names) if chart["svg"]],
        grid=_grid(run),
        config=(run / "config.yaml").read_text(encoding="utf-8"),
        versions=(run / "versions.json").read_text(encoding="utf-8") if (run / "versions.json").is_file() else "",
        last=metrics[-1] if metrics else {},
    )
    path = run / "report.html"
    path.write_text(page, encoding="utf-8")
    if metrics and evaluations:
        figure(run).savefig(run / "report.png", dpi=110)
    return path


def figure(run: Path) -> Figure:
    """Reward over the steps and, where the run draws pictures, samples of the same prompts before and after."""
    metrics, evaluations = read_rows(run / "metrics.jsonl"), read_rows(run / "eval.jsonl")
    names = _reward_names(metrics, evaluations)
    grid = _grid(run)
    pictures = [row for row in grid["rows"] if row["cells"] and row["cells"][0].get("png")][:6]
    with matplotlib.rc_context(_STYLE | {"text.color": "#333333"}):
        drawn = Figure(figsize=(9, 3.2), layout="constrained")
        areas: Any = drawn.subfigures(1, 2, width_ratios=[1.15, 1]) if pictures else [drawn]
        axes = areas[0].subplots()
        _draw(axes, _eval_series(evaluations, names) if evaluations else _train_series(metrics, names))
        axes.set_title("held-out prompts" if evaluations else "training prompts", fontsize=9)
        axes.set_xlabel("step")
        if pictures:
            cells = areas[1].subplots(len(pictures), 2, squeeze=False)
            for axis_row, row in zip(cells, pictures, strict=True):
                for axis, cell in zip(axis_row, (row["cells"][0], row["cells"][-1]), strict=True):
                    axis.imshow(matplotlib.image.imread(io.BytesIO(base64.b64decode(cell["png"]))), cmap="gray")
                    axis.set_axis_off()
            cells[0][0].set_title(f"step {grid['steps'][0]}", fontsize=9)
            cells[0][1].set_title(f"step {grid['steps'][-1]}", fontsize=9)
    return drawn


_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,  # a reward's name may hold dollar signs
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "text.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _INK,
    "grid.alpha": 0.25,
    "axes.prop_cycle": cycler(color=_COLOURS),
    "legend.frameon": False,
}


def read_rows(path: Path) -> Rows:
    """Rows of a JSON-lines file of a run, up to a torn line as a crash or a running training leaves it."""
    rows = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8").split("\n"):  # a text may hold other separators
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return rows


def _reward_names(metrics: Rows, evaluations: Rows) -> list[str]:
    names = [m.group(1) for key in (metrics[-1] if metrics else {}) if (m := re.fullmatch(r"rewards/(.+)/mean", key))]
    return names or [
        k for k in (evaluations[-1] if evaluations else {}) if k not in ("step", "reward") and "/" not in k
    ]


def _headline(evaluations: Rows, names: Sequence[str]) -> list[dict[str, Any]]:
    """Before and after on held-out prompts, per reward."""
    if not evaluations:
        return []
    first, last = evaluations[0], evaluations[-1]
    return [
        {
            "name": name,
            "before": first.get(name),
            "after": last.get(name),
            "before_ci": first.get(f"{name}/ci95"),
            "after_ci": last.get(f"{name}/ci95"),
        }
        for name in ("reward", *names)
    ]


def _charts(metrics: Rows, evaluations: Rows, names: Sequence[str]) -> list[dict[str, str]]:
    def column(key: str) -> dict[str, list[tuple[float, float]]]:
        return {key: [(row["step"], row[key]) for row in metrics if row.get(key) is not None]}

    times = {
        key.removeprefix("time/"): [(row["step"], row[key]) for row in metrics if row.get(key) is not None]
        for key in (metrics[-1] if metrics else {})
        if key.startswith("time/")
    }
    low, high = column("clip_ratio/low_mean"), column("clip_ratio/high_mean")
    return [
        _chart("Reward on held-out prompts", "mean over samples", _eval_series(evaluations, names)),
        _chart("Reward in training", "mean over a step's samples", _train_series(metrics, names)),
        _chart("Spread inside groups", "mean std of a group's reward", column("reward_std")),
        _chart("KL to the reference", "nats per decision", column("kl")),
        _chart("Entropy", "nats per decision", column("entropy")),
        _chart("Clipped decisions", "share", {"low": low["clip_ratio/low_mean"], "high": high["clip_ratio/high_mean"]}),
        _chart("Gradient norm", "before clipping", column("grad_norm")),
        _chart("Groups without spread", "share with equal rewards", column("frac_reward_zero_std")),
        _chart("Seconds per step", "by phase", times),
    ]


def _eval_series(evaluations: Rows, names: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
    return {
        name: [(row["step"], row[name]) for row in evaluations if row.get(name) is not None]
        for name in ("reward", *names)
    }


def _train_series(metrics: Rows, names: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
    keys = {"reward": "reward", **{name: f"rewards/{name}/mean" for name in names}}
    return {
        name: [(row["step"], row[key]) for row in metrics if row.get(key) is not None] for name, key in keys.items()
    }


def _chart(title: str, unit: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, str]:
    if not any(series.values()):
        return {"title": title, "unit": unit, "svg": ""}
    with matplotlib.rc_context(_STYLE):
        drawn = Figure(figsize=(5, 2.6), layout="constrained")
        _draw(drawn.subplots(), series)
        out = io.StringIO()
        drawn.savefig(
            out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    return {"title": title, "unit": unit, "svg": out.getvalue()[out.getvalue().index("<svg") :]}


def _draw(axes: Any, series: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    for name, points in series.items():
        if points:
            axes.plot(
                *zip(*points, strict=True),
                label=name,
                linewidth=1.6,
                marker="o" if len(points) < 15 else "",
                markersize=3,
            )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    if len(series) > 1:
        axes.legend(fontsize=8)


def _grid(run: Path) -> dict[str, Any]:
    """Samples of the same held-out prompts (rows) over the evaluations (columns)."""
    folders = sorted(p for p in (run / "samples").glob("step_*") if (p / "samples.jsonl").is_file())
    if len(folders) > _COLUMNS_SHOWN:  # first, last, and evenly between
        picked = [round(i * (len(folders) - 1) / (_COLUMNS_SHOWN - 1)) for i in range(_COLUMNS_SHOWN)]
        folders = [folders[i] for i in picked]
    columns = [(folder, read_rows(folder / "samples.jsonl")) for folder in folders]
    count = min((len(rows) for _, rows in columns), default=0)
    rows = []
    for i in range(min(count, _ROWS_SHOWN)):
        first_folder, first = columns[0][0], columns[0][1][i]
        target = first.get("target")
        rows.append(
            {
                "prompt": first["prompt"],
                "target": _embed(first_folder / target) if target else None,
                "target_text": first.get("target_text"),
                "cells": [_cell(folder, found[i]) for folder, found in columns],
            }
        )
    return {"steps": [int(folder.name.removeprefix("step_")) for folder, _ in columns], "rows": rows}


def _cell(folder: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    scores = ", ".join(f"{k} {'–' if v is None else format(v, '.2f')}" for k, v in row["scores"].items())
    return {
        "png": _embed(folder / row["file"]) if "file" in row else None,
        "text": row.get("output", ""),
        "scores": scores,
    }


def _embed(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode() if path.is_file() else ""
