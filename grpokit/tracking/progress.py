"""How a training loop is going, in words: a step on one line, and lines at intervals for a script or a notebook."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from grpokit.tracking.step_report import StepReport

_BARS = "▁▂▃▄▅▆▇█"
INTERVAL = 10.0  # seconds between two lines
_RECENT = 200  # steps that an ETA goes by


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """The course of `values` in `width` characters or fewer.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    parts = [values[a:b] for a, b in itertools.pairwise(edges)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def score_text(mean: float | None) -> str:
    """A mean score with three digits, or the words for a missing one."""
    return "not scored" if mean is None or math.isnan(mean) else f"{mean:.3f}"


class RewardTrend:
    """The course of a run: the rewards of its steps, by phase, for one line about each step."""

    def __init__(self) -> None:
        self.rewards: dict[str, list[float]] = {}

    def line(self, report: StepReport) -> str:
        """One line about a step: its phase, the reward and its course, KL, clipped decisions, the gradient's norm."""
        m = report.metrics
        rewards = self.rewards.setdefault(report.phase, [])  # a phase may have rewards of its own
        if not math.isnan(m["reward"]):
            rewards.append(m["reward"])
        parts = []
        if report.phase:
            parts.append(report.phase)
        parts.append(f"reward {score_text(m['reward'])} {sparkline(rewards)}")
        if "kl" in m:
            parts.append(f"kl {m['kl']:.3f}")
        clipped = m.get("clip_ratio/low_mean", 0.0) + m.get("clip_ratio/high_mean", 0.0)
        parts += [f"clipped {clipped:.1%}", f"grad {m['grad_norm']:.2g}"]
        return "  ".join(parts)


class Eta:
    """When a run will end: the mean time from one step's end to the next, by phase, with evaluations and checkpoints.

    The first step of a process is slower than the others; it counts only until its phase has a second one.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._end: float | None = None
        self._times: dict[str, list[float]] = {}
        self._warm = False  # whether the first step is left out

    def start(self) -> None:
        """The first step begins now: what came before it, such as an evaluation, does not count."""
        self._last = time.monotonic()

    def step(self, phase: str, left: Mapping[str, int]) -> None:
        """A step has ended.

        Args:
            phase: its phase; empty if there is only one.
            left: phase -> remaining steps.
        """
        now = time.monotonic()
        times = self._times.setdefault(phase, [])
        times.append(now - self._last)
        if len(times) == 2 and not self._warm:
            self._warm = True
            del times[0]
        del times[:-_RECENT]
        self._last = now
        means = {}
        for name, own in self._times.items():
            means[name] = sum(own) / len(own)
        typical = sum(means.values()) / len(means)
        seconds = [count * means.get(name, typical) for name, count in left.items()]
        self._end = now + sum(seconds)

    def text(self) -> str:
        """The time left, such as "ETA 1:02:03"; empty before the end of the first step."""
        if self._end is None:
            return ""
        return f"ETA {timedelta(seconds=round(max(0.0, self._end - time.monotonic())))}"


class IntervalLines:
    """Prints the progress of a training loop: its batches, every warning, and a line per `INTERVAL`.

    Args:
        steps: in all.
        batches: what a step is made of.
        enabled: if not, nothing is printed.
        write: prints a line; by default on stderr.
    """

    def __init__(
        self, steps: int, batches: str, *, enabled: bool = True, write: Callable[[str], None] | None = None
    ) -> None:
        self.steps = steps
        self.enabled = enabled
        self.write = write or _on_stderr
        self.course = RewardTrend()
        self.printed = time.monotonic()
        self._print(batches)

    def step(self, report: StepReport) -> None:
        """Add a step, and print its warnings, and a line about it if one is due."""
        line = self.course.line(report)
        for warning in report.warnings:
            self._print(f"warning, step {report.step}: {warning}")
        now = time.monotonic()
        is_last = self.write is not _on_stderr and report.step == self.steps
        if is_last or now - self.printed >= INTERVAL:
            self._print(f"step {report.step}/{self.steps}  {line}  {report.metrics['step_time']:.2f} s")
            self.printed = now

    def _print(self, line: str) -> None:
        if self.enabled:
            self.write(line)


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
