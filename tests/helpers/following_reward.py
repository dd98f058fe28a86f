"""A reward that follows its run."""

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
