"""Rewards whose maps are known, for the tests of `grpokit try`."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np

from grpokit import Sample

_NOISE = random.Random(0)
CALLS: list[int] = []


def _pixels(sample: Sample) -> np.ndarray:
    return np.asarray(sample.output.convert("L"), dtype=np.float64) / 255


def quarter(samples: Sequence[Sample]) -> list[float]:
    """The brightness of the left top quarter."""
    CALLS.append(len(samples))
    scores = []
    for sample in samples:
        pixels = _pixels(sample)
        height, width = pixels.shape
        scores.append(float(pixels[: height // 2, : width // 2].mean()))
    return scores


def noise(samples: Sequence[Sample]) -> list[float]:
    """Noise alone."""
    return [_NOISE.gauss(0.5, 0.1) for _ in samples]


def noisy_quarter(samples: Sequence[Sample]) -> list[float]:
    """The quarter with a little noise."""
    return [score + _NOISE.gauss(0, 0.0001) for score in quarter(samples)]


def constant(samples: Sequence[Sample]) -> list[float]:
    """The same for everything."""
    return [0.25 for _ in samples]


def any_of_two(samples: Sequence[Sample]) -> list[float]:
    """1 where either of two words is there: leaving out one of them changes nothing."""
    return [float("cat" in sample.output or "dog" in sample.output) for sample in samples]


def shouts(samples: Sequence[Sample]) -> list[float]:
    """Minus the share of capital letters, NaN without letters."""
    scores = []
    for sample in samples:
        letters = [letter for letter in sample.output if letter.isalpha()]
        scores.append(-sum(map(str.isupper, letters)) / len(letters) if letters else math.nan)
    return scores


def needs_all(samples: Sequence[Sample]) -> list[float]:
    """Raises on a text without "please"."""
    for sample in samples:
        if "please" not in sample.output:
            raise ValueError("not polite")
    return [1.0 for _ in samples]


def raises(samples: Sequence[Sample]) -> list[float]:
    """Raises on everything."""
    raise ZeroDivisionError("always")


def interrupted(samples: Sequence[Sample]) -> list[float]:
    """As if Ctrl-C were pressed in the call."""
    raise KeyboardInterrupt


def talks(samples: Sequence[Sample]) -> list[float]:
    """Prints, as some rewards do."""
    print("loading model ...")
    return [1.0 for _ in samples]
