"""The curves of a run as numbers, ready to be drawn: what is on each chart, its points and its range.

Long runs are thinned, with a running mean next to the raw values. The range is chosen here: an axis that holds only the
last digits would make a change of 3 % look like a cliff.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from grpokit.report.metric_words import correlation_pair, words
from grpokit.run_folder.names import GROUPS, ROWS
from grpokit.run_folder.reader import Row, RunHistory, read_rows

_POINTS = 600  # the most that a line is drawn with
_NOISY = 120  # with this many points or more, a running mean is drawn
_BINS = 24  # of the histogram of advantages
_HISTOGRAMS = 60  # steps that it shows at most
_NOTHING = 1e-12  # rounding, where a metric is 0 or does not move

Range = Literal["zero", "share", "wide", "correlation"]


def charts(run: RunHistory) -> list[dict[str, Any]]:
    """All charts that a run has numbers for, the most asked for first.

    Each has an `id`, a `title`, a `unit`, its `range` as [low, high], and `lines` of `name`, `reward` (which it is
    about), `x`, `y`, `smooth` (a running mean, or None) and `half` (half-widths of confidence intervals, or None).
    """
    rewards = {}  # how a line is called -> the reward
    trained = {}
    not_scored = {}
    for name, weight in run.weights.items():
        label = name if weight else f"{name} (monitor)"
        rewards[label] = name
        trained[label] = "reward" if name == "reward" else f"rewards/{name}/mean"
        unscored = f"rewards/{name}/unscored"
        if any(_numbers(run.metrics, unscored)):
            not_scored[label] = unscored
    correlations = {}
    for key in run.keys:
        if pair := correlation_pair(key, run.names):
            correlations[" and ".join(pair)] = key
    times = {words(key): key for key in run.keys if key.startswith("time/")}
    rates = set(_numbers(run.metrics, "learning_rate"))
    changing = {"learning rate": "learning_rate"} if len(rates) > 1 else {}
    specs: list[tuple[str, str, Range, Mapping[str, str]]] = [
        ("Reward in training", "mean over a step's samples", "wide", trained),
        ("KL to the reference", "nats per decision", "zero", {"KL": "kl"}),
        ("Groups with equal rewards", "share; they teach nothing", "share", {"share": "frac_reward_zero_std"}),
        ("Entropy", "nats per decision", "wide", {"entropy": "entropy"}),
        ("Clipped decisions", "share", "share", {"below": "clip_ratio/low_mean", "above": "clip_ratio/high_mean"}),
        ("Correlation of rewards", "inside groups: 1 the same, -1 against each other", "correlation", correlations),
        ("Spread inside groups", "mean standard deviation of a group's reward", "zero", {"spread": "reward_std"}),
        ("Norm of the gradient", "before clipping", "zero", {"norm": "grad_norm"}),
        ("Advantages", "of a step's samples", "zero", {"spread": "advantage/std", "largest": "advantage/abs_max"}),
        ("Rollout against training", "largest difference of log-probs, nats", "zero",
         {"difference": "logprob_diff/max"}),
        ("Samples not scored", "of a step", "zero", not_scored),
        ("Decisions of a sample", "count", "zero", {"mean": "length/mean", "most": "length/max"}),
        ("Learning rate", "of a step's last update", "zero", changing),
        ("Seconds of a step", "by kind of work", "zero", times),
        ("Memory", "peak, MiB", "zero", {"peak": "memory/peak_mb"}),
    ]  # fmt: skip
    found = []
    if not any(row.get("title") for row in run.evaluations):  # of sources, which are no steps
        lines = [_held_out(run.evaluations, label, name) for label, name in rewards.items()]
        found.append(_chart("Reward on held-out prompts", "mean with its 95 % interval", "wide", lines))
    for title, unit, kind, columns in specs:
        lines = [_trained(run.metrics, label, key, rewards.get(label)) for label, key in columns.items()]
        found.append(_chart(title, unit, kind, lines))
    return [chart for chart in found if chart["lines"]]


def advantages(run: RunHistory) -> dict[str, Any] | None:
    """Histograms of the advantages in the best and the worst group of the steps that keep them.

    Returns:
        `steps` [S], `edges` [_BINS + 1], `shares` [_BINS, S] of each step's samples; None without any.
    """
    columns = {}
    for step, folder in _thinned(run.sample_folders(GROUPS), _HISTOGRAMS):
        values = _numbers(read_rows(folder / ROWS), "advantage")
        if values:
            columns[step] = values
    if not columns:
        return None
    edge = max(1.0, *(max(map(abs, values)) for values in columns.values()))
    edges = np.linspace(-edge, edge, _BINS + 1)
    shares = []
    for values in columns.values():
        counts, _ = np.histogram(values, edges)
        shares.append(counts / len(values))
    by_bin = np.stack(shares, 1)  # [S, _BINS] -> [_BINS, S]
    return {
        "steps": list(columns),
        "edges": _short(edges),
        "shares": [_short(row) for row in by_bin],
    }


def reward_against_kl(run: RunHistory) -> dict[str, Any] | None:
    """Reward in training (y) over KL to the reference (x), step by step; None where one of both is missing."""
    rows = [row for row in run.metrics if row.get("kl") is not None and row.get("reward") is not None]
    if len(rows) < 2 or not any(row["kl"] for row in rows):
        return None
    return {
        "steps": _thinned(_numbers(rows, "step")),
        "x": _short(_numbers(rows, "kl")),
        "y": _short(_numbers(rows, "reward")),
    }


def _numbers(rows: Sequence[Row], key: str) -> list[float]:
    return [row[key] for row in rows if row.get(key) is not None]


def _thinned(items: Any, most: int = _POINTS) -> Any:
    """Every n-th item, so that there are at most so many."""
    return items[:: math.ceil(len(items) / most) or 1]


def _short(values: Any) -> list[float]:
    """What is drawn of the values: not too many, and six digits, which is more than a screen shows."""
    return [float(f"{value:.6g}") for value in _thinned(values)]


def _trained(rows: Sequence[Row], label: str, key: str, reward: str | None) -> dict[str, Any]:
    """The line of a metric over the steps; a long one has a running mean."""
    rows = [row for row in rows if row.get(key) is not None]
    values = _numbers(rows, key)
    smooth = _short(_running_mean(values)) if len(values) >= _NOISY else None
    return _line(rows, values, name=label, reward=reward, smooth=smooth, half=None)


def _held_out(rows: Sequence[Row], label: str, reward: str) -> dict[str, Any]:
    """The line of a reward over the evaluations, with its intervals."""
    rows = [row for row in rows if row["means"].get(reward) is not None]
    values = [row["means"][reward] for row in rows]
    widths = [row["ci95"].get(reward) or 0.0 for row in rows]
    half = _short(widths) if any(widths) else None
    return _line(rows, values, name=label, reward=reward, smooth=None, half=half)


def _line(rows: Sequence[Row], values: Sequence[float], **further: Any) -> dict[str, Any]:
    return {"x": _thinned(_numbers(rows, "step")), "y": _short(values), **further}


def _running_mean(values: Sequence[float]) -> np.ndarray:
    window = np.ones(max(5, len(values) // 50))
    sums = np.convolve(values, window, mode="same")
    counts = np.convolve(np.ones_like(values), window, mode="same")
    return sums / counts


def _chart(title: str, unit: str, kind: Range, lines: list[dict[str, Any]]) -> dict[str, Any]:
    lines = [line for line in lines if line["x"]]
    return {
        "id": title.lower().replace(" ", "-"),
        "title": title,
        "unit": unit,
        "range": _range(kind, lines),
        "lines": lines,
    }


def _range(kind: Range, lines: Sequence[Mapping[str, Any]]) -> list[float]:
    """What the axis shows at first: from 0 where 0 means none, and never only the last digits of a level."""
    if kind == "correlation":
        return [-1.05, 1.05]
    ends = []
    for line in lines:
        for i, y in enumerate(line["y"]):
            half = line["half"][i] if line["half"] else 0
            ends += [y - half, y + half]
    low = min(ends, default=0.0)
    high = max(ends, default=1.0)
    if kind != "wide" and low >= 0:
        top = 1.08 * high
        if kind == "share":
            top = max(top, 0.05)
        elif high <= _NOTHING:
            top = 1.0
        return [-0.02 * top, top]
    size = max(abs(low), abs(high))
    span = max(1.1 * (high - low), 0.2 * size if size > _NOTHING else 0.1)
    middle = (low + high) / 2
    return [middle - span / 2, middle + span / 2]
