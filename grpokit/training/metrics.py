"""Measurements of a training step: times of its phases, statistics of decisions, statistics of rewards.

Sums stay on the device until the end of the step, so that measuring does not make a GPU wait. Names are TRL's where
the meaning is the same.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from grpokit.group_statistics import Groups
from grpokit.rewards.scoring import Scores
from grpokit.tracking import process_memory
from grpokit.training.devices import wait_for
from grpokit.training.rollout_parts import AllRows


class StepLog:
    """What is logged of a step: warnings, seconds per named phase, and peak memory.

    On CUDA seconds are as the device sees them, by events for which nothing waits before the end. The peak memory is
    that of CUDA's allocator, and on a CPU that of the whole process.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.warnings: list[str] = []
        self.start = time.perf_counter()
        self._spans: list[tuple[str, Any, Any]] = []
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def warn(self, *lines: str) -> None:
        """Log warnings; a sentence or two each."""
        self.warnings += lines

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Add the time spent inside the context to `phase`."""
        start = self._mark()
        try:
            yield
        finally:
            self._spans.append((phase, start, self._mark()))

    def metrics(self) -> dict[str, float]:
        """Seconds since the log was begun, seconds per phase, and the peak memory since then in MiB."""
        wait_for(self.device)
        cuda = self.device.type == "cuda"
        seconds: dict[str, float] = defaultdict(float)
        for phase, start, end in self._spans:
            seconds[phase] += start.elapsed_time(end) / 1000 if cuda else end - start
        peak = torch.cuda.max_memory_allocated(self.device) if cuda else process_memory.highest()
        return {
            "step_time": time.perf_counter() - self.start,
            **{f"time/{phase}": duration for phase, duration in seconds.items()},
            "memory/peak_mb": peak / 2**20,
        }

    def _mark(self) -> Any:
        """A time: an event in the device's queue, or the clock's seconds."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event


_WITH_EXTREMES = ("ratio", "logprob_diff")  # of the others nobody reads any


@dataclass
class Tally:
    """Means, and some extremes, of [b, t] statistics over all decisions that are not masked."""

    sums: dict[str, Tensor] = field(default_factory=dict)  # name -> [2], the sum of the values and their number
    largest: dict[str, Tensor] = field(default_factory=dict)  # name -> [2], the largest value and negated value
    scored: int = 0  # decisions, padding included
    decided: int = 0  # those that are not masked

    def add(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Count `values` [b, t] where `mask` [b, t] is True."""
        values = values.detach().double()
        total = torch.where(mask, values, 0.0).sum()
        sums = torch.stack([total, mask.sum(dtype=torch.float64)])
        self.sums[name] = self.sums.get(name, 0) + sums
        if name in _WITH_EXTREMES and values.numel():
            both_signs = torch.stack([values, -values])  # [2, b, t]
            self._widen(name, torch.where(mask, both_signs, -torch.inf).amax((1, 2)))

    def add_differences(self, difference: Tensor, mask: Tensor) -> None:
        """Count how far log-probs [b, t] are from those that the sampler stated, before any weight has changed."""
        ratio = torch.where(mask, difference, 0.0).clamp(-20.0, 20.0).exp()
        self.add("logprob_diff", difference.abs(), mask)
        self.add("logprob_diff_signed", difference, mask)
        self.add("sampler_ratio", ratio, mask)
        self.add("sampler_ratio_square", ratio.square(), mask)

    @classmethod
    def merged(cls, tallies: Iterable[Tally]) -> Tally:
        """All statistics of several tallies."""
        whole = cls()
        for tally in tallies:
            whole.scored, whole.decided = whole.scored + tally.scored, whole.decided + tally.decided
            for name, sums in tally.sums.items():
                whole.sums[name] = whole.sums.get(name, 0) + sums
            for name, largest in tally.largest.items():
                whole._widen(name, largest)
        return whole

    def on_cpu(self) -> Tally:
        """The same, for another process."""
        parts = [*self.sums.values(), *self.largest.values()]
        pairs: Iterator[Tensor] = iter(torch.stack(parts).cpu() if parts else ())  # in one copy
        sums = {name: next(pairs) for name in self.sums}
        largest = {name: next(pairs) for name in self.largest}
        return Tally(sums, largest, self.scored, self.decided)

    def means(self) -> dict[str, float]:
        """Name -> mean over decisions."""
        means = {}
        for name, (total, count) in self.sums.items():
            means[name] = float(total / count.clamp(min=1))
        return means

    def extremes(self, name: str) -> tuple[float, float]:
        """The smallest and the largest value; NaN if there is none."""
        none = torch.tensor([math.nan, math.nan])
        largest, negated = self.largest.get(name, none).tolist()
        return (-negated, largest) if math.isfinite(largest) else (math.nan, math.nan)

    def _widen(self, name: str, largest: Tensor) -> None:
        self.largest[name] = torch.maximum(self.largest.get(name, largest), largest)


def reward_metrics(scores: Scores, advantages: Tensor) -> dict[str, float]:
    """Statistics of the rewards of B samples, and of their advantages [B] or [B, T], if a reward is trained."""
    groups = scores.groups
    metrics = _total_metrics(scores.totals, groups, advantages) if scores.trained.names else {}
    columns = zip(scores.names, scores.matrix.T, scores.seconds, scores.failed, scores.asked, strict=True)
    for name, column, seconds, failed, asked in columns:
        if not asked:
            continue
        values = column[~column.isnan()]
        metrics[f"rewards/{name}/mean"] = float(values.mean())
        metrics[f"rewards/{name}/std"] = float(values.std()) if len(values) > 1 else 0.0
        metrics[f"rewards/{name}/unscored"] = float(len(column) - len(values))
        metrics[f"rewards/{name}/failed"] = float(failed)
        metrics[f"rewards/{name}/seconds"] = seconds
    measured = [i for i, asked in enumerate(scores.asked) if asked]
    for i, j in itertools.combinations(measured, 2):
        r = correlation(scores.matrix[:, i], scores.matrix[:, j], groups)
        if not math.isnan(r):
            metrics[f"correlation/{scores.names[i]}/{scores.names[j]}"] = r
    return metrics


def _total_metrics(totals: Tensor, groups: Tensor, advantages: Tensor) -> dict[str, float]:
    """Statistics of the weighted sums [B] and of the advantages."""
    scored = ~totals.isnan()
    per_group = [totals[(groups == group) & scored] for group in groups.unique()]
    stds = [float(part.std()) if len(part) > 1 else 0.0 for part in per_group]
    return {
        "reward": float(totals[scored].mean()),
        "reward_std": sum(stds) / len(stds),
        "unscored_rows": float((~scored).sum()),
        "advantage/mean": float(advantages.mean()),
        "advantage/std": float(advantages.std()),
        "advantage/abs_max": float(advantages.abs().max()),
    }


def correlation(x: Tensor, y: Tensor, groups: Tensor) -> float:
    """Pearson's correlation of two rewards' deviations from their group's mean, since advantages only use those.

    Of scores x and y [B], NaN where there is none. NaN if one of them is constant inside all groups [B].
    """
    both = ~(x.isnan() | y.isnan())
    if not bool(both.any()):
        return math.nan
    pair, members = torch.stack([x, y]), Groups(groups)
    centred = torch.stack([members.centre(column, both) for column in pair])
    deviations = centred[:, both]  # [2, b]
    spread = deviations.norm(dim=1)
    rounding = 1e-12 * pair[:, both].abs().amax(1)
    if bool((spread <= rounding).any()):
        return math.nan
    a, b = deviations / spread[:, None]
    return float(a @ b)


def slowest(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The times and memory of all processes -> the largest of each."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: max(part[name] for part in parts if name in part) for name in names}


def decision_metrics(tally: Tally) -> dict[str, float]:
    """Statistics of the decisions of one step, under their public names."""
    means = tally.means()
    names: Mapping[str, str] = {
        "kl": "kl",
        "entropy": "entropy",
        "clip_low": "clip_ratio/low_mean",
        "clip_high": "clip_ratio/high_mean",
        "logprob_diff": "logprob_diff/mean",
        "logprob_diff_signed": "logprob_diff/signed_mean",
    }
    metrics = {public: means[name] for name, public in names.items() if name in means}
    metrics |= {name: mean for name, mean in means.items() if "/" in name}  # of an objective's own
    metrics["ratio/min"], metrics["ratio/max"] = tally.extremes("ratio")
    metrics["logprob_diff/max"] = tally.extremes("logprob_diff")[1]
    if "sampler_ratio" in means:
        square = max(means["sampler_ratio_square"], 1e-300)
        metrics["logprob_diff/ess"] = min(1.0, means["sampler_ratio"] ** 2 / square)  # not 1 + rounding
    metrics["positions_per_decision"] = tally.scored / max(tally.decided, 1)
    return metrics


def length_metrics(rows: AllRows) -> dict[str, float]:
    """Statistics of the number of decisions per row, and of texts whose policy tells how they ended."""
    lengths = rows.decided.double()
    metrics = {"length/mean": float(lengths.mean()), "length/max": float(lengths.max())}
    if rows.ends:
        cut = [finish == "length" for finish, _ in rows.ends]
        metrics["completions/clipped_ratio"] = sum(cut) / len(cut)
    ended = [tokens for finish, tokens in rows.ends if finish == "stop" and isinstance(tokens, int)]
    if ended:
        metrics["completions/mean_terminated_length"] = sum(ended) / len(ended)
        metrics["completions/min_terminated_length"] = float(min(ended))
        metrics["completions/max_terminated_length"] = float(max(ended))
    return metrics
