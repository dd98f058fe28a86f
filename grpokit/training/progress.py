"""How a training loop is going, in words: a step on one line, and lines at intervals for a script or a notebook."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Sequence
from typing import Protocol

from grpokit.training.step_report import StepReport

_BARS = "▁▂▃▄▅▆▇█"
INTERVAL = 10.0  # seconds between two lines


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """The course of `values` in `width` characters or fewer.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def score_text(mean: float) -> str:
    """A mean score with three digits, or the words for NaN."""
    return "not scored" if math.isnan(mean) else f"{mean:.3f}"


class Course:
    """The course of a run: the rewards of its steps, by phase, for one line about each step."""

    def __init__(self) -> None:
        self.rewards: dict[str, list[float]] = {}

    def line(self, report: StepReport) -> str:
        """One line about a step: its phase, the reward and its course, KL, clipped decisions, the gradient's norm."""
        m = report.metrics
        rewards = self.rewards.setdefault(report.phase, [])  # a phase may have rewards of its own
        if not math.isnan(m["reward"]):
            rewards.append(m["reward"])
        parts = [report.phase] if report.phase else []
        parts += [f"reward {score_text(m['reward'])} {sparkline(rewards)}"]
        parts += [f"kl {m['kl']:.3f}"] if "kl" in m else []
        clipped = m.get("clip_ratio/low_mean", 0.0) + m.get("clip_ratio/high_mean", 0.0)
        parts += [f"clipped {clipped:.1%}", f"grad {m['grad_norm']:.2g}"]
        return "  ".join(parts)


class _Described(Protocol):
    """What is shown of a trainer."""

    @property
    def steps(self) -> int:
        """In all."""
        ...

    def describe(self) -> str:
        """The arithmetic of batches."""
        ...


class IntervalLines:
    """Prints on stderr how a training loop goes on: its batches, every warning, and a line per `INTERVAL`.

    Args:
        trainer: whose steps they are.
        enabled: if not, nothing is printed.
    """

    def __init__(self, trainer: _Described, *, enabled: bool) -> None:
        self.steps, self.enabled = trainer.steps, enabled
        self.course = Course()
        self.printed = time.monotonic()
        self._print(trainer.describe())

    def step(self, report: StepReport) -> None:
        """Add a step, and print its warnings, and a line about it if one is due."""
        line = self.course.line(report)
        for warning in report.warnings:
            self._print(f"warning, step {report.step}: {warning}")
        now = time.monotonic()
        if now - self.printed >= INTERVAL:
            self._print(f"step {report.step}/{self.steps}  {line}  {report.metrics['step_time']:.2f} s")
            self.printed = now

    def _print(self, line: str) -> None:
        if self.enabled:
            print(line, file=sys.stderr, flush=True)
