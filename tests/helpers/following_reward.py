"""Rewards that follow their run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from grpokit import Sample
from tiny_policies import digit_sum

CALLS = "calls.txt"


class Counting:
    """Sums of digits, times how often it was called in training, which only it knows."""

    files = (CALLS,)

    def __init__(self, fails_at: int = 0, words: str = "") -> None:
        self.calls, self.fails_at, self.words = 0, fails_at, words

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        if "training_step" not in samples[0].info:
            return [0.0] * len(samples)
        self.calls += 1
        with (self.folder / CALLS).open("a") as file:
            file.write(f"{samples[0].info['training_step']}\n")
        if self.words:
            thread = threading.Thread(target=self.waits, args=(self.words,))
            thread.start()
            thread.join()
        if self.calls == self.fails_at:
            raise ValueError("not this time")
        self.waits("")
        return [self.calls * score for score in digit_sum(samples)]

    def begin(self, folder: Path, waits: Callable[[str], None], *, replays: bool) -> None:
        self.folder, self.waits, self.replays = folder, waits, replays

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls, "tensor": torch.tensor([float(self.calls)])}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        self.calls = state["calls"]
        assert state["tensor"].tolist() == [self.calls]

    def export(self, folder: Path, *, name: str) -> None:
        (folder / "calls.txt").write_text(f"{name} {self.calls}")


class Usual:
    """Sums of digits, less the mean of all samples of the step before, which it learns."""

    files = ()

    def __init__(self) -> None:
        self.usual, self.sums = 0.0, list[float]()

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        self.sums = digit_sum(samples)
        return [score - self.usual for score in self.sums]

    def begin(self, folder: Path, waits: Callable[[str], None], *, replays: bool) -> None:
        pass

    def lesson(self) -> list[float]:
        sums, self.sums = self.sums, []
        return sums

    def learn(self, lessons: Sequence[list[float]], warn: Callable[[str], None]) -> dict[str, float]:
        sums = [score for lesson in lessons for score in lesson]
        self.usual = sum(sums) / len(sums)
        if self.usual > 1:
            warn("the sums are large")
        return {"usual": self.usual}

    def state_dict(self) -> dict[str, Any]:
        return {"usual": self.usual}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        self.usual = state["usual"]
