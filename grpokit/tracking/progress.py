"""How a run is going, in words, for all that follow one: the command line, a script's loop and a notebook."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from grpokit.tracking.step_report import StepReport

_BARS = "▁▂▃▄▅▆▇█"
_LONGEST_SILENCE = 60.0  # seconds
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


class Eta:
    """When a run will end: the mean time from one step's end to the next, by phase, with evaluations and checkpoints.

    The first step of a process is slower than the others; it counts only until its phase has a second one.
    """

    def __init__(self) -> None:
        self.start()
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


class RunLines:
    """Follows a run in lines: every warning, held-out scores, and a line about a step where one is due.

    That is the first step and the last one, about ten in between, and one a minute after a longer silence.

    Args:
        steps: in all.
        say: prints a line.
        bar: whether a bar or a page shows the steps, so that there are no lines about them.

    Attributes:
        eta: when the run will end.
        news: the last step: its phase, the reward and its course, or else the loss, KL, clipped decisions, the
            gradient's norm.
    """

    def __init__(self, steps: int, say: Callable[[str], None], *, bar: bool = False) -> None:
        self.steps = steps
        self.say = say
        self.bar = bar
        self.eta = Eta()
        self.news = ""
        self._rewards: dict[str, list[float]] = {}  # of the steps, by phase: each may have rewards of its own
        self._printed = -math.inf

    def step(self, report: StepReport, left: Mapping[str, int]) -> None:
        """Print a step's warnings, and a line about it if one is due.

        Args:
            report: the step's.
            left: phase -> remaining steps.
        """
        self.eta.step(report.phase, left)
        self.news = self._news(report)
        for warning in report.warnings:
            self.say(f"warning, step {report.step}: {warning}")
        if not self.bar and self._is_due(report.step):
            seconds = report.metrics["step_time"]
            self.say(f"step {report.step}/{self.steps}  {self.news}  {seconds:.2f} s  {self.eta.text()}")
            self._printed = time.monotonic()

    def evaluated(self, step: int, means: Mapping[str, float | None]) -> str:
        """Print the mean scores on held-out prompts after `step`, and return the line."""
        if not self._rewards:
            self.eta.start()  # the evaluation before training does not slow the steps
        scores = "  ".join(f"{name} {score_text(mean)}" for name, mean in means.items()) or "no reward"
        line = f"held-out prompts after step {step}: {scores}"
        self.say(line)
        return line

    def _news(self, report: StepReport) -> str:
        m = report.metrics
        rewards = self._rewards.setdefault(report.phase, [])
        reward = m.get("reward", math.nan)
        if not math.isnan(reward):
            rewards.append(reward)
        parts = []
        if report.phase:
            parts.append(report.phase)
        if "reward" in m:
            parts.append(f"reward {score_text(reward)} {sparkline(rewards)}")
        else:  # no reward is trained
            parts.append(f"loss {m['loss']:.3g}")
        if "kl" in m:
            parts.append(f"kl {m['kl']:.3f}")
        clipped = m.get("clip_ratio/low_mean", 0.0) + m.get("clip_ratio/high_mean", 0.0)
        parts += [f"clipped {clipped:.1%}", f"grad {m['grad_norm']:.2g}"]
        return "  ".join(parts)

    def _is_due(self, step: int) -> bool:
        is_tenth = step % max(1, self.steps // 10) == 0
        silence = time.monotonic() - self._printed  # endless before the first line
        return is_tenth or step == self.steps or silence > _LONGEST_SILENCE
