"""A picture that sums up a run, for a README: its curve, and pictures of the same prompts before and after."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from matplotlib.ticker import MaxNLocator
from PIL import Image

from grpokit.report.pictures import picture_of
from grpokit.report.samples import by_prompt
from grpokit.run_folder.names import SAMPLES
from grpokit.run_folder.reader import Row, Rows, RunHistory

_INK, _TEXT = "#8a8f98", "#333333"
_COLOURS = ["#2a7de1", "#e0762f", "#2ca05a", "#b452cd", "#c7a008", "#d1495b"]
_DASHES: list[Any] = [
    "solid",
    (0, (5, 1.5)),
    (0, (1.5, 1)),
    (0, (6, 1.5, 1.5, 1.5)),
    (0, (3, 3)),
    (0, (8, 2, 2, 2)),
]
_NAME = 30  # characters of a line's name
_PROMPTS, _SIDE = 6, 256
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,  # a reward's name may hold dollar signs
    "axes.formatter.useoffset": False,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "text.color": _TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _INK,
    "grid.alpha": 0.25,
    "axes.prop_cycle": cycler(color=_COLOURS),
    "legend.frameon": False,
}


def png(run: RunHistory) -> bytes:
    """The figure as a file, without warnings about letters that matplotlib's font lacks."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from font", UserWarning)
        drawn(run).savefig(file, dpi=110, format="png")
    return file.getvalue()


def drawn(run: RunHistory) -> Figure:
    """The figure of `grpokit.report.figure`, for a run that has been read."""
    names = ["reward", *run.names][: len(_COLOURS)]
    if run.evaluations:
        rows: Rows = [{"step": row["step"], **row["means"]} for row in run.evaluations]
        keys = {name: name for name in names}
    else:
        rows = run.metrics
        keys = {name: "reward" if name == "reward" else f"rewards/{name}/mean" for name in names}
    steps, pictures = _before_and_after(run)
    with matplotlib.rc_context(_STYLE):
        columns = 3 if max(map(len, names)) <= _NAME // 2 else 1  # of the legend
        fig = Figure(figsize=(9, 3.2 if columns > 1 else 4.4), layout="constrained")
        areas: Any = [fig]
        if pictures:
            areas = fig.subfigures(1, 2, width_ratios=[1, 1.15])
        axes = areas[-1].subplots()  # on the right of the pictures
        _draw(axes, rows, keys)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        if len(axes.lines) > 1:
            areas[-1].legend(loc="outside lower center", ncols=columns, fontsize=9, handlelength=2.5)
        axes.set_title("held-out prompts" if run.evaluations else "training prompts", fontsize=9)
        axes.set_xlabel("step")
        if pictures:
            cells = areas[0].subplots(len(pictures), 2, squeeze=False)
            for axis_row, pair in zip(cells, pictures, strict=True):
                for axis, picture in zip(axis_row, pair, strict=True):
                    axis.imshow(picture)
                    axis.set_axis_off()
            for axis, step in zip(cells[0], steps, strict=True):
                axis.set_title(f"step {step}", fontsize=9)
    return fig


def _draw(axes: Any, rows: Sequence[Row], keys: dict[str, str]) -> None:
    """A line for each score; earlier ones are wider, so that they are seen under later ones with the same values."""
    for name, key in keys.items():
        points = [row for row in rows if row.get(key) is not None]
        if not points:
            continue
        i = len(axes.lines)
        axes.plot(
            [row["step"] for row in points],
            [row[key] for row in points],
            label=name if len(name) <= _NAME else f"{name[: _NAME - 1]}…",
            marker="o" if len(points) < 15 else "",
            markersize=3,
            linestyle=_DASHES[i],
            linewidth=2.8 - 0.2 * i,
        )
    low, high = axes.dataLim.intervaly
    size = max(abs(low), abs(high))
    if axes.lines and high - low <= max(1e-4 * size, 1e-12):  # a level line, not its last digits over the whole height
        half = 0.05 * size if size > 1e-12 else 0.05
        axes.set_ylim((low + high) / 2 - half, (low + high) / 2 + half)


def _before_and_after(run: RunHistory) -> tuple[list[int], list[list[Image.Image]]]:
    """The first and the last evaluation's step, and pictures of the same prompts."""
    folders = run.sample_folders(SAMPLES)
    if not folders:
        return [], []
    first, before = folders[0]
    last, after = folders[-1]
    new_rows = by_prompt(after)
    pairs: list[list[Image.Image]] = []
    for key, row in by_prompt(before).items():
        if key in new_rows and len(pairs) < _PROMPTS:
            sides = picture_of(before, row, "file"), picture_of(after, new_rows[key], "file")
            pair = [picture for picture in sides if picture]
            for picture in pair:
                picture.thumbnail((_SIDE, _SIDE))
            if len(pair) == 2:
                pairs.append(pair)
    return [first, last], pairs
