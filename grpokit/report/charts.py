"""Curves of a run, or of two runs over each other, as inline SVG; and a picture that sums up a run, for a README.

matplotlib draws with fixed colours, which are then swapped for CSS variables, so that a page's theme decides. Lines
differ by their dashes and widths as well as by colour. Long runs are thinned: raw values in the background, a running
mean in front.
"""

from __future__ import annotations

import base64
import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from grpokit.report.reading import Row, Run, read
from grpokit.report.samples import Album, grid

_INK = "#8a8f98"  # axes and text in a grey that reads on white and on black
_COLOURS = ["#2a7de1", "#e0762f", "#2ca05a", "#b452cd", "#c7a008", "#d1495b"]
_DASHES: list[Any] = ["solid", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 3)), (0, (8, 2, 2, 2))]
_POINTS = 1000  # the most that a line is drawn with
_NOISY = 120  # with this many points or more, a running mean is drawn
_UNSCORED = "Samples not scored"
_NOTHING = 1e-12  # rounding, where a metric is 0 or does not move
_LEGEND = 0.5  # the height of a legend, in inches, that a figure has room for
_FROM_ZERO = {"Zero-std groups", "Clipped decisions", "Gradient norm", "Seconds per step", _UNSCORED}
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "grpokit",  # the same run gives the same page
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,  # a reward's name may hold dollar signs
    "axes.formatter.useoffset": False,
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
    "path.simplify_threshold": 0.5,
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve.

    Attributes:
        name: in the legend.
        steps: x.
        values: y, as many.
        widths: half-widths of confidence intervals, drawn as a band; empty for none.
        colour: index of its colour.
        dash: index of its dashes.
    """

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    widths: Sequence[float] = ()
    colour: int = 0
    dash: int = 0


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings about letters that matplotlib's font lacks: on a page, the browser has other fonts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from font", UserWarning)
        yield


def charts(runs: Sequence[Run]) -> list[dict[str, str]]:
    """All charts that one run or two have numbers for: title, unit, a summary in words, and the SVG.

    Of two runs the second is dashed, and a colour means the same metric.
    """
    weights = {name: weight for run in runs for name, weight in run.weights.items()}
    names = {name: name if weight else f"{name} (monitor)" for name, weight in weights.items()}
    keys = list(dict.fromkeys(key for run in runs for key in run.keys))
    rewards = {label: "reward" if name == "reward" else f"rewards/{name}/mean" for name, label in names.items()}
    phases = {key.removeprefix("time/"): key for key in keys if key.startswith("time/")}
    memory = {key.removeprefix("memory/"): key for key in keys if key.startswith("memory/")}
    specs: list[tuple[str, str, dict[str, str]]] = [
        ("Reward in training", "mean over a step's samples", rewards),
        ("Spread inside groups", "mean std of a group's reward", {"std": "reward_std"}),
        ("Zero-std groups", "share of groups with equal rewards", {"share": "frac_reward_zero_std"}),
        ("KL to the reference", "nats per decision", {"kl": "kl"}),
        ("Entropy", "nats per decision", {"entropy": "entropy"}),
        ("Clipped decisions", "share", {"low": "clip_ratio/low_mean", "high": "clip_ratio/high_mean"}),
        ("Gradient norm", "before clipping", {"norm": "grad_norm"}),
        ("Rollout against training", "largest difference of log-probs, nats", {"difference": "logprob_diff/max"}),
        (_UNSCORED, "rows of a step", {label: f"rewards/{name}/unscored" for name, label in names.items()}),
        ("Seconds per step", "by kind of work", phases),
        ("Memory", "MiB", memory),
    ]
    shaded = [(first, last) for _, first, last in runs[0].stretches[1::2]] if len(runs) == 1 else []
    held_out = [_lines(run.evaluations, {label: name for name, label in names.items()}, widths=True) for run in runs]
    figures = [
        _chart("Reward on held-out prompts", "mean, with its 95 % confidence interval", _merged(held_out), shaded)
    ]
    for title, unit, columns in specs:
        lines = _merged([_lines(run.metrics, columns) for run in runs])
        if title == _UNSCORED and not any(value for line in lines for value in line.values):
            continue
        figures.append(_chart(title, unit, lines, shaded))
    return [chart for chart in figures if chart["svg"]]


def figure(run: Path) -> Figure:
    """Reward over the steps and, where the run draws pictures, samples of the same prompts before and after."""
    return story(read(run), Album())


@quiet()
def story(run: Run, album: Album) -> Figure:
    """As `figure`, for a run and pictures that have been read."""
    names = {"reward": "reward", **{name: name for name in run.names}}
    trained = {"reward": "reward", **{name: f"rewards/{name}/mean" for name in run.names}}
    evaluations = run.evaluations
    lines = _lines(evaluations, names) if evaluations else _lines(run.metrics, trained)
    samples = grid(run, album)
    pictures = [row for row in samples["rows"] if all(c["card"] and c["card"].picture for c in _ends(row))][:6]
    with matplotlib.rc_context(_STYLE | {"text.color": "#333333"}):
        fig = Figure(figsize=(9, 3.2), layout="constrained")
        areas: Any = fig.subfigures(1, 2, width_ratios=[1.15, 1]) if pictures else [fig]
        axes = areas[0].subplots()
        for index, line in enumerate(lines):
            marker = "o" if len(line.steps) < 15 else ""
            axes.plot(line.steps, line.values, label=line.name, marker=marker, markersize=3, **_style(lines, index))
        _widen(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        if len(lines) > 1:
            _name_lines(fig, areas[0])
        axes.set_title("held-out prompts" if evaluations else "training prompts", fontsize=9)
        axes.set_xlabel("step")
        if pictures:
            cells = areas[1].subplots(len(pictures), 2, squeeze=False)
            for axis_row, row in zip(cells, pictures, strict=True):
                for axis, cell in zip(axis_row, _ends(row), strict=True):
                    data = base64.b64decode(cell["card"].picture.partition(",")[2])
                    kind = "jpeg" if cell["card"].picture.startswith("data:image/jpeg") else "png"
                    axis.imshow(matplotlib.image.imread(io.BytesIO(data), format=kind), cmap="gray")
                    axis.set_axis_off()
            cells[0][0].set_title(f"step {samples['steps'][0]}", fontsize=9)
            cells[0][1].set_title(f"step {samples['steps'][-1]}", fontsize=9)
    return fig


def _ends(row: Mapping[str, Any]) -> tuple[Any, Any]:
    return row["cells"][0], row["cells"][-1]


def _lines(rows: Sequence[Row], columns: Mapping[str, str], *, widths: bool = False) -> list[Line]:
    """A line for each column that holds any number."""
    lines = []
    for index, (name, key) in enumerate(columns.items()):
        points = [row for row in rows if row.get(key) is not None]
        if points:
            half = [row.get(f"{key}/ci95") or 0.0 for row in points] if widths else []
            lines.append(
                Line(
                    name=name,
                    steps=[row["step"] for row in points],
                    values=[row[key] for row in points],
                    widths=half,
                    colour=index,
                    dash=index + index // len(_COLOURS),  # they shift where the colours start over
                )
            )
    return lines


def _merged(runs: Sequence[Sequence[Line]]) -> list[Line]:
    if len(runs) == 1:
        return list(runs[0])
    return [
        replace(line, name=f"{letter}: {line.name}", dash=dash)
        for dash, (letter, lines) in enumerate(zip("AB", runs, strict=True))
        for line in lines
    ]


@quiet()
def _chart(title: str, unit: str, lines: Sequence[Line], shaded: Sequence[tuple[int, int]] = ()) -> dict[str, str]:
    if not lines:
        return {"title": title, "unit": unit, "summary": "", "svg": ""}
    window = 0
    with matplotlib.rc_context(_STYLE | {"font.size": 10}):
        fig = Figure(figsize=(4.4, 2.7), layout="constrained")
        axes = fig.subplots()
        for index, line in enumerate(lines):
            window = max(window, _draw(axes, line, _style(lines, index)))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        axes.margins(x=0.02)
        if title in _FROM_ZERO:
            highest = max(max(line.values) for line in lines)
            top = 1.08 * highest if highest > _NOTHING else 1
            axes.set_ylim(-0.02 * top, top)  # so that a line at 0 is seen whole
        else:
            _widen(axes)
        for first, last in shaded:
            axes.axvspan(first - 0.5, last + 0.5, color=_INK, alpha=0.14, linewidth=0, zorder=0)
        if len(lines) > 1:
            _name_lines(fig, fig)
        out = io.StringIO()
        fig.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    summary = "; ".join(f"{line.name} from {line.values[0]:.4g} to {line.values[-1]:.4g}" for line in lines)
    note = f"; bold: mean of {window} steps" if window else ""
    return {"title": title, "unit": unit + note, "summary": summary, "svg": _themed(out.getvalue())}


def _style(lines: Sequence[Line], index: int) -> dict[str, Any]:
    """Earlier lines are wider, so that they can be seen under later ones with the same values."""
    colour, dash = _COLOURS[lines[index].colour % len(_COLOURS)], _DASHES[lines[index].dash % len(_DASHES)]
    over = (len(lines) - 1 - index) / max(1, len(lines) - 1)
    return {"color": colour, "linestyle": dash, "linewidth": 1.6 + 1.2 * over}


def _widen(axes: Any) -> None:
    """Show values that hardly differ as a level line, instead of their last digits over the whole height."""
    low, high = axes.dataLim.intervaly
    size = max(abs(low), abs(high))
    if high - low <= max(1e-4 * size, _NOTHING):
        half = 0.05 * size if size > _NOTHING else 0.05
        axes.set_ylim((low + high) / 2 - half, (low + high) / 2 + half)


def _name_lines(fig: Figure, area: Figure | SubFigure) -> None:
    """Add a legend below a part of a figure: in as many columns as its names allow; the figure grows with its rows."""
    axes = fig.axes[0]
    handles, names = axes.get_legend_handles_labels()
    renderer: Any = FigureCanvasAgg(fig).get_renderer()  # type: ignore[no-untyped-call]
    for columns, longest in ((3, 60), (2, 60), (1, 60), (1, 40), (1, 24)):
        area.legends.clear()
        wrapped = [textwrap.fill(name, longest) for name in names]
        legend = area.legend(handles, wrapped, loc="outside lower center", ncols=columns, fontsize=9, handlelength=2.5)
        size = legend.get_window_extent(renderer)
        if size.width <= area.bbox.width:
            break
    fig.set_figheight(fig.get_figheight() + max(0.0, size.height / fig.dpi - _LEGEND))


def _draw(axes: Any, line: Line, style: Mapping[str, Any]) -> int:
    """Draw a line; returns how many steps its running mean covers, 0 where it has none."""
    steps, values = np.asarray(line.steps, float), np.asarray(line.values, float)
    if len(values) < _NOISY:
        axes.plot(steps, values, label=line.name, marker="o" if len(values) < 15 else "", markersize=3, **style)
        if any(line.widths):
            half = np.asarray(line.widths, float)
            axes.fill_between(steps, values - half, values + half, color=style["color"], alpha=0.15, linewidth=0)
        return 0
    window = max(5, len(values) // 50)
    weights = np.convolve(np.ones_like(values), np.ones(window), mode="same")
    smooth = np.convolve(values, np.ones(window), mode="same") / weights
    every = -(-len(values) // _POINTS)
    axes.plot(steps[::every], values[::every], color=style["color"], linewidth=0.6, alpha=0.35)
    axes.plot(steps[::every], smooth[::every], label=line.name, **style)
    return window


def _themed(svg: str) -> str:
    """Leave out what a page does not need, and let its theme choose the colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'<g id="[\w.]+_\d+">', "<g>", svg)  # the same in every chart
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), svg)
    svg = re.sub(rf"(fill|stroke): {_INK}", r"\1: currentColor", svg)
    for index, colour in enumerate(_COLOURS):
        svg = re.sub(rf"(fill|stroke): {colour}", rf"\1: var(--line-{index})", svg)
    return svg
